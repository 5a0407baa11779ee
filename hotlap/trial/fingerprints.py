"""Tensors as fingerprints: a digest of their numbers, and a sketch that tells how far two of them are apart.

One pass over the numbers where they lie, in pieces, as float64 and in logical order: neither the memory format, the
device nor the dtype of equal numbers matters. Nothing is drawn from any random stream.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from hotlap.records.traces import Fingerprint

BUCKETS = 16
PIECE = 1 << 20  # numbers at a time: a multiple of the buckets
MOST = 128  # fingerprints of one kind; more tensors than that share them
GOLDEN, MIX = 0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64)  # as signed numbers
WRAP = (1 << 64) - 1


class Fingerprints:
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.unreadable: list[str] = []

    def of(self, named: Iterable[tuple[str, Any]]) -> tuple[Fingerprint, ...]:
        """Of tensors by name; where there are many, neighbours share one."""
        tensors = list(named)
        each = -(-len(tensors) // MOST) or 1
        groups = [tensors[first : first + each] for first in range(0, len(tensors), each)]
        with self._undisturbed():
            return tuple(self._of_group(group) for group in groups)

    def sketches(self, named: Iterable[tuple[str, Any]]) -> dict[str, tuple[float, ...]]:
        return {one.name: one.sketch for one in self.of(named)}

    def _undisturbed(self) -> Any:
        from contextlib import ExitStack

        from torch.utils._python_dispatch import _disable_current_modes

        stack = ExitStack()
        stack.enter_context(self._torch._C.DisableTorchFunction())
        stack.enter_context(_disable_current_modes())
        stack.enter_context(self._torch.no_grad())
        return stack

    def _of_group(self, group: Sequence[tuple[str, Any]]) -> Fingerprint:
        name = group[0][0] if len(group) == 1 else f"{group[0][0]} to {group[-1][0]}"
        total, square, buckets, at = 0, 0.0, [0.0] * BUCKETS, 0
        for own, tensor in group:
            try:
                flat = self._flat(tensor)
            except Exception:  # noqa: BLE001 whatever kind of tensor this is: sparse, quantized, without memory
                self.unreadable.append(own)
                continue
            mixed, size, sketch = self._sums(flat, at)
            total, square = (total + mixed) & WRAP, square + size
            buckets = [one + other for one, other in zip(buckets, sketch, strict=True)]
            at += flat.numel() + 1
        shape = "".join(str(getattr(tensor, "shape", "")) for _, tensor in group)
        digest = hashlib.blake2b(f"{total} {shape}".encode(), digest_size=8).hexdigest()
        return Fingerprint(name=name, digest=digest, norm=math.sqrt(square), sketch=tuple(buckets))

    def _flat(self, tensor: Any) -> Any:
        torch = self._torch
        tensor = getattr(tensor, "_local_tensor", tensor).detach()  # of a sharded one, what is here
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        if tensor.device.type not in ("cpu", "cuda"):
            tensor = tensor.cpu()
        return tensor.reshape(-1)

    def _sums(self, flat: Any, offset: int) -> tuple[int, float, list[float]]:
        """Of numbers and their places: a mixed sum of bits, the sum of squares, and the buckets."""
        torch, total, square = self._torch, 0, 0.0
        buckets = torch.zeros(BUCKETS, dtype=torch.float64, device=flat.device)
        for first in range(0, flat.numel(), PIECE):
            piece = flat[first : first + PIECE].to(torch.float64)
            place = torch.arange(offset + first, offset + first + piece.numel(), dtype=torch.int64, device=piece.device)
            place = place * GOLDEN
            place = (place ^ (place >> 32)) * MIX
            bits = piece.view(torch.int64) + place
            bits = (bits ^ (bits >> 31)) * GOLDEN
            total += int((bits ^ (bits >> 29)).sum())
            finite = torch.nan_to_num(piece, 0.0, 0.0, 0.0)
            square += float((finite * finite).sum())
            signed = finite * (((place >> 17) & 1) * 2 - 1)
            if rest := -signed.numel() % BUCKETS:
                signed = torch.cat([signed, signed.new_zeros(rest)])
            buckets += signed.view(-1, BUCKETS).sum(0)
        return total & WRAP, square, [float(one) for one in buckets.tolist()]


def live_models(torch: Any) -> list[Any]:
    """Modules with parameters or buffers that are no part of another, as far as the garbage collector knows them."""
    import gc

    from hotlap.patch.roots import children_of

    kind = torch.nn.Module
    modules = [one for one in gc.get_objects() if issubclass(type(one), kind) and "_modules" in vars(one)]
    inner = {id(child) for module in modules for child in children_of(module)}
    found = []
    for one in modules:
        with suppress(Exception):  # a module that is half made
            if id(one) not in inner and any(True for _ in tensors_of(one)):
                found.append(one)
    return found


def tensors_of(module: Any) -> Iterable[tuple[str, Any]]:
    yield from module.named_parameters()
    yield from module.named_buffers()

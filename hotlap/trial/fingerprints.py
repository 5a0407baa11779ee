"""Fingerprints of tensors: a digest of the numbers, and a sketch that shows how far apart two tensors are.

One pass over the numbers on their own device, in pieces, as float64 and in logical order: neither memory format, device
nor dtype matters when the numbers are equal. Nothing is drawn from any random stream.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hotlap.records.traces import Fingerprint

BUCKETS = 16
PIECE = 1 << 20  # numbers at a time: a multiple of the buckets
MOST = 128  # fingerprints of one kind; with more tensors, several share one
GOLDEN, MIX = 0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64)  # as signed integers
WRAP = (1 << 64) - 1


class Fingerprints:
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.unreadable: list[str] = []

    def of(self, named: Iterable[tuple[str, Any]]) -> tuple[Fingerprint, ...]:
        """Return the fingerprints of named tensors; if there are many, neighbours share one."""
        tensors = list(named)
        each = -(-len(tensors) // MOST) or 1
        groups = [tensors[first : first + each] for first in range(0, len(tensors), each)]
        with self._undisturbed():
            return tuple(self._of_group(group) for group in groups)

    def together(self, name: str, tensors: Sequence[Any], most: int) -> Fingerprint:
        """Return one fingerprint of several tensors; of one with more than `most` numbers, an even sample."""
        with self._undisturbed():
            found = self._of_group([(name, _sampled(tensor, most)) for tensor in tensors])
        shapes = " ".join(str(tuple(getattr(tensor, "shape", ()))) for tensor in tensors)
        digest = hashlib.blake2b(f"{found.digest} {shapes}".encode(), digest_size=8).hexdigest()
        return replace(found, name=name, digest=digest)

    def sketches(self, named: Iterable[tuple[str, Any]]) -> dict[str, tuple[float, ...]]:
        return {fingerprint.name: fingerprint.sketch for fingerprint in self.of(named)}

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
            except Exception:  # noqa: BLE001 some kinds of tensor cannot be read: sparse, quantized, without memory
                self.unreadable.append(own)
                continue
            mixed, size, sketch = self._sums(flat, at)
            total, square = (total + mixed) & WRAP, square + size
            buckets = [bucket + part for bucket, part in zip(buckets, sketch, strict=True)]
            at += flat.numel() + 1
        shape = "".join(str(getattr(tensor, "shape", "")) for _, tensor in group)
        digest = hashlib.blake2b(f"{total} {shape}".encode(), digest_size=8).hexdigest()
        return Fingerprint(name=name, digest=digest, norm=math.sqrt(square), sketch=tuple(buckets))

    def _flat(self, tensor: Any) -> Any:
        torch = self._torch
        tensor = getattr(tensor, "_local_tensor", tensor).detach()  # of a sharded tensor, the local shard
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        if tensor.device.type not in ("cpu", "cuda"):
            tensor = tensor.cpu()
        return tensor.reshape(-1)

    def _sums(self, flat: Any, offset: int) -> tuple[int, float, list[float]]:
        """Return a mixed sum of the bits of numbers and places, the sum of squares, and the buckets."""
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
        return total & WRAP, square, [float(bucket) for bucket in buckets.tolist()]


def _sampled(tensor: Any, most: int) -> Any:
    """Return a tensor itself, or evenly spaced numbers of it in logical order."""
    count = tensor.numel()
    if count <= most:
        return tensor
    return tensor.detach().reshape(-1)[:: -(-count // most)]


def live_models(torch: Any) -> list[Any]:
    """Return the outermost modules with parameters or buffers, as far as the garbage collector knows them."""
    import gc

    from hotlap.patch.roots import children_of

    kind = torch.nn.Module
    modules = [module for module in gc.get_objects() if issubclass(type(module), kind) and "_modules" in vars(module)]
    inner = {id(child) for module in modules for child in children_of(module)}
    found = []
    for module in modules:
        with suppress(Exception):  # a module that is not fully constructed
            if id(module) not in inner and any(True for _ in tensors_of(module)):
                found.append(module)
    return found


def tensors_of(module: Any) -> Iterable[tuple[str, Any]]:
    yield from module.named_parameters()
    yield from module.named_buffers()

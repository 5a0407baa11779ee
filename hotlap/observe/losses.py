"""The loss of each step, taken without making the host wait."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

from hotlap.patch.operations import watching


class LossTensor(NamedTuple):
    """A loss on the device as it was at its backward, if its version still is."""

    tensor: Any
    version: int


SMALL = 4096  # bytes of memory that keeping a loss may keep


class Losses:
    """What backward was called on, un-scaled. A step's loss is the sum over its backward calls.

    Inside an optimizer's own step (LBFGS evaluates several times) only the first counts. On a device a loss is copied
    while warming up; if nothing wrote to the losses after their backward, from then on the loss itself is kept, which
    spares the step a launch.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._tensor = torch.Tensor
        self._item = torch._C.TensorBase.item  # never the patched one
        self._watched = watching(torch)  # by a profiler of the program, which would show what we read
        self._now: list[Any] = []
        self._ended: list[Any] = []  # before an optimizer step that may be the last of its step
        self._steps: list[list[Any]] = []
        self._unscaled: tuple[Any, Any] | None = None
        self.backwards = 0
        self.stepping = False
        self.keeping = True
        self.on_host = False  # known to be, once the device of the training is
        self.seen = False
        self.copying = True
        self._written_to = False
        self._originals: list[tuple[Any, int]] = []  # while copying: what was copied, and its version
        self._addresses: set[int] = set()  # of losses kept by themselves
        self._overwritten: set[int] = set()

    def scaled(self, scaler: Any, args: Any, kwargs: Any, result: Any) -> None:
        """GradScaler.scale(loss) gave result: remember the loss itself."""
        loss = args[0] if args else kwargs.get("outputs")
        self._unscaled = (result, loss)

    def note(self, instance: Any, args: Any, kwargs: Any) -> Any:
        """What backward is about to be called on: a number, a tensor, or a list of them. Runs in the user's step."""
        root = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
        if not self.keeping or root is None or self._watched():
            return None
        if type(root) is not self._tensor:
            # A subclass of Tensor may have no length, and an iterator is the user's to read.
            return [self._take(one) for one in root] if isinstance(root, list | tuple) else None
        if self.on_host and self._unscaled is None:
            try:
                return self._item(root)  # refuses more than one element, cheaper than asking first
            except RuntimeError:
                return None
        return self._take(root)

    def add(self, loss: Any) -> None:
        """A backward call, as read from the tape."""
        self.backwards += 1
        losses = [one for one in (loss if type(loss) is list else [loss]) if one is not None]
        if self._originals:
            self._check_originals()
        losses = [self._untouched(one) if type(one) is LossTensor else one for one in losses]
        if losses and not (self.stepping and self._now):
            self.seen = True
            self._now += losses

    def _without_scale(self, root: Any) -> Any:
        assert self._unscaled is not None
        scaled, loss = self._unscaled
        if scaled is not root:
            return root
        self._unscaled = None
        return loss

    def _take(self, loss: Any) -> Any:
        if self._unscaled is not None:
            loss = self._without_scale(loss)
        if type(loss) is not self._tensor or loss.numel() != 1:
            return None
        if not loss.is_cuda:
            return self._item(loss)
        if self._torch.cuda.is_current_stream_capturing():
            return None
        kept = loss.detach()
        if not self.copying:
            return LossTensor(kept, kept._version)
        self._originals.append((kept, kept._version))
        return kept.clone()  # a launch, no sync; later in-place changes cannot reach it

    def stop_copying(self) -> None:
        """Warmed up: unless a loss was seen to be written to, or is part of something large."""
        self.copying = self._written_to
        self._originals.clear()

    def _check_originals(self) -> None:
        """The memory of a loss that is still kept cannot be another's: the same address is the same buffer."""
        addresses = {kept.data_ptr() for kept, _ in self._originals}
        changed = any(kept._version != version for kept, version in self._originals)
        large = any(kept.untyped_storage().nbytes() > SMALL for kept, _ in self._originals)
        self._written_to = self._written_to or changed or large or len(addresses) < len(self._originals)
        del self._originals[:-1]  # the last one's memory stays taken, to be compared with the next step's

    def _untouched(self, loss: LossTensor) -> Any:
        address = loss.tensor.data_ptr()
        if loss.tensor._version != loss.version or address in self._addresses:
            self.copying = True
            self._overwritten.add(address)
        self._addresses.add(address)
        return loss.tensor

    def optimizer_ended(self) -> None:
        self._ended += self._now
        self._now = []

    def close_step(self) -> None:
        if self.keeping:
            self._steps.append(self._ended)
        self._ended = []

    def values(self, may_wait: bool) -> tuple[float, ...]:
        """One loss a step; those on a device only when waiting is allowed, and even then by polling, without a sync."""
        on_device = [loss for step in self._steps for loss in step if not isinstance(loss, int | float)]
        if on_device and not may_wait:
            return ()
        told = _read(self._torch, on_device)
        lost = [one.data_ptr() in self._overwritten for one in on_device]
        read = iter([math.nan if gone else value for value, gone in zip(told, lost, strict=True)])
        sums = []
        for step in self._steps:
            parts = [loss if isinstance(loss, int | float) else next(read) for loss in step]
            if not parts:
                return ()
            sums.append(float(sum(parts)) if len(parts) > 1 else float(parts[0]))
        return tuple(sums)


def _read(torch: Any, tensors: list[Any]) -> list[float]:
    if not tensors:
        return []
    stacked = torch.stack([tensor.reshape(()).to(torch.float64) for tensor in tensors])
    host = torch.empty(len(tensors), dtype=torch.float64, pin_memory=True)
    host.copy_(stacked, non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    while not done.query():
        time.sleep(0.001)
    return list(map(float, host.numpy()))

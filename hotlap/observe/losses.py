"""Records the loss of each step without making the host wait."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

from hotlap.patch.operations import watching


class LossTensor(NamedTuple):
    """A loss on the device; its value is that of its backward as long as the version is unchanged."""

    tensor: Any
    version: int


SMALL = 4096  # bytes that a held loss may keep allocated
LOOKS = 16  # losses of which it is seen whether they are a quotient or a product …
DIVIDED = ("DivBackward0", "MulBackward0")  # … by the last operation that made them


Call = list[Any]  # the losses of one backward call: numbers, or tensors on a device


class Losses:
    """Collects the unscaled tensors that backward was called on.

    Of several backward calls before an optimizer step, the mean is taken, or the sum if the program has divided the
    losses itself. The losses of several optimizers add up.

    Inside an optimizer's own step (LBFGS evaluates several times) only the first counts. On a device, a loss is copied
    while warming up; if nothing wrote to the losses after their backward, the loss itself is held from then on, which
    saves the step a launch.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._tensor = torch.Tensor
        self._item = torch._C.TensorBase.item  # the original, not the patched one
        self._watched = watching(torch)  # by a profiler of the program, which would show hotlap's reads
        self._now: list[Call] = []
        self._ended: list[list[Call]] = []  # before each optimizer step that may end the step
        self._steps: list[list[list[Call]]] = []
        self._looks = LOOKS
        self._divided = False  # by the program, so that accumulated losses add up to their mean
        self._unscaled: tuple[Any, Any] | None = None
        self.backwards = 0
        self.stepping = False
        self.keeping = True
        self.on_host = False  # stays False until the training device is known
        self.seen = False
        self.copying = True
        self._written_to = False
        self._originals: list[tuple[Any, int]] = []  # while copying: the copied tensors and their versions
        self._addresses: set[int] = set()  # of losses that are held without a copy
        self._overwritten: set[int] = set()

    def scaled(self, scaler: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Remember the loss behind the result of GradScaler.scale(loss)."""
        loss = args[0] if args else kwargs.get("outputs")
        self._unscaled = (result, loss)

    def note(self, instance: Any, args: Any, kwargs: Any) -> Any:
        """Return the losses of a backward call: a number, a tensor, or a list of them. Runs in the user's step."""
        root = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
        if not self.keeping or root is None or self._watched():
            return None
        if type(root) is not self._tensor:
            # A subclass of Tensor may have no length, and an iterator is the user's to read.
            return [self._take(loss) for loss in root] if isinstance(root, list | tuple) else None
        if self._looks:
            self._look(root)
        if self.on_host and self._unscaled is None:
            try:
                return self._item(root)  # raises for more than one element, which is cheaper than checking first
            except RuntimeError:
                return None
        return self._take(root)

    def _look(self, root: Any) -> None:
        self._looks -= 1
        loss = self._unscaled[1] if self._unscaled is not None and self._unscaled[0] is root else root
        made_by = getattr(loss, "grad_fn", None)
        self._divided = self._divided or (made_by is not None and made_by.name() in DIVIDED)

    def add(self, loss: Any) -> None:
        """Add the losses of a backward call, as read from the tape."""
        self.backwards += 1
        losses = [value for value in (loss if type(loss) is list else [loss]) if value is not None]
        if self._originals:
            self._check_originals()
        losses = [self._untouched(value) if type(value) is LossTensor else value for value in losses]
        if losses and not (self.stepping and self._now):
            self.seen = True
            self._now.append(losses)

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
        held = loss.detach()
        if not self.copying:
            return LossTensor(held, held._version)
        self._originals.append((held, held._version))
        return held.clone()  # a launch, no sync; later in-place changes cannot reach it

    def stop_copying(self) -> None:
        """Stop copying after warm-up, unless a loss was overwritten or is part of a large tensor."""
        self.copying = self._written_to
        self._originals.clear()

    def _check_originals(self) -> None:
        """Check for overwritten losses. Memory of a held loss is not reused, so an equal address is the same buffer."""
        addresses = {loss.data_ptr() for loss, _ in self._originals}
        changed = any(loss._version != version for loss, version in self._originals)
        large = any(loss.untyped_storage().nbytes() > SMALL for loss, _ in self._originals)
        self._written_to = self._written_to or changed or large or len(addresses) < len(self._originals)
        del self._originals[:-1]  # the last one stays allocated, to be compared with the next step's

    def _untouched(self, loss: LossTensor) -> Any:
        address = loss.tensor.data_ptr()
        if loss.tensor._version != loss.version or address in self._addresses:
            self.copying = True
            self._overwritten.add(address)
        self._addresses.add(address)
        return loss.tensor

    def optimizer_ended(self) -> None:
        if self._now:
            self._ended.append(self._now)
        self._now = []

    def close_step(self) -> None:
        if self.keeping:
            self._steps.append(self._ended)
        self._ended = []

    def values(self, may_wait: bool) -> tuple[float, ...]:
        """Return one loss per step. Losses on a device need `may_wait` and are then read by polling, without a sync."""
        calls = [call for step in self._steps for optimizer in step for call in optimizer]
        on_device = [loss for call in calls for loss in call if not isinstance(loss, int | float)]
        if on_device and not may_wait:
            return ()
        values = _read(self._torch, on_device)
        lost = [loss.data_ptr() in self._overwritten for loss in on_device]
        read = iter([math.nan if gone else value for value, gone in zip(values, lost, strict=True)])
        if not all(self._steps):
            return ()
        sums = iter([sum(loss if isinstance(loss, int | float) else next(read) for loss in call) for call in calls])
        return tuple(
            float(sum(self._joined([next(sums) for _ in optimizer]) for optimizer in step)) for step in self._steps
        )

    def _joined(self, losses: list[float]) -> float:
        return sum(losses) if self._divided or len(losses) == 1 else sum(losses) / len(losses)


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

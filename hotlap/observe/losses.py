"""The loss of each step, taken without making the host wait."""

from __future__ import annotations

import time
from typing import Any


class Losses:
    """What backward was called on, un-scaled. A step's loss is the sum over its backward calls.

    Inside an optimizer's own step (LBFGS evaluates several times) only the first counts.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._item = torch._C.TensorBase.item  # never the patched one
        self._now: list[Any] = []
        self._ended: list[Any] = []  # before an optimizer step that may be the last of its step
        self._steps: list[list[Any]] = []
        self._unscaled: tuple[Any, Any] | None = None
        self.backwards = 0
        self.stepping = False
        self.keeping = True
        self.seen = False

    def scaled(self, scaler: Any, args: Any, kwargs: Any, result: Any) -> None:
        """GradScaler.scale(loss) gave result: remember the loss itself."""
        loss = args[0] if args else kwargs.get("outputs")
        self._unscaled = (result, loss)

    def backward(self, instance: Any, args: Any, kwargs: Any) -> None:
        self.backwards += 1
        if not self.keeping or (self.stepping and self._now):
            return
        roots = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
        for root in roots if isinstance(roots, list | tuple) else (roots,):
            self._take(self._without_scale(root))

    def _without_scale(self, root: Any) -> Any:
        if self._unscaled is not None and self._unscaled[0] is root:
            loss = self._unscaled[1]
            self._unscaled = None
            return loss
        return root

    def _take(self, loss: Any) -> None:
        if type(loss) is not self._torch.Tensor or loss.numel() != 1:
            return
        self.seen = True
        if not loss.is_cuda:
            self._now.append(self._item(loss))
        elif not self._torch.cuda.is_current_stream_capturing():
            self._now.append(loss.detach().clone())  # a launch, no sync; later in-place changes cannot reach it

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
        read = iter(_read(self._torch, on_device))
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

"""The next batch of resident data, gathered beside the step before it.

A gather is a chain of kernels of its own: the rows of the window, then a kernel or two for each tensor. In a forked
graph it runs beside the forward pass of the step before, and its result is put into place beside the optimizer, when
the present batch is no longer read.
"""

from __future__ import annotations

from torch import Tensor

from hotlap.engine.seam import Batch, Resident


class Ahead:
    """`windows` has the rows of every full window and one more window, which is gathered but never trained on."""

    def __init__(self, source: Resident, windows: Tensor, step: Tensor) -> None:
        self.source, self.now, self.following, self.step = source, windows[:-1], windows[1:], step
        self.batch: Batch = tuple(tensor.clone() for tensor in self._rows(self.now))
        self._coming: Batch = ()

    def _rows(self, windows: Tensor) -> Batch:
        return self.source.gather(windows.index_select(0, self.step).view(-1))

    def begin(self) -> None:
        """Gather the batch of the step the device is at, which no earlier step has gathered."""
        self._coming = self._rows(self.now)
        self.put()

    def fetch(self) -> None:
        self._coming = self._rows(self.following)

    def put(self) -> None:
        for held, tensor in zip(self.batch, self._coming, strict=True):
            held.copy_(tensor)
        self._coming = ()

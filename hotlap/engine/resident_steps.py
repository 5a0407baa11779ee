"""The steps of resident data: the order of the epoch lies on the device, and the step picks its window by the device's
own count, so a replay needs nothing from the host.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotlap.engine.choice import Mode, choose
from hotlap.engine.data.sources import Tensors, with_rows
from hotlap.engine.forks import Forks
from hotlap.engine.next_batch import Ahead
from hotlap.engine.processor import present
from hotlap.engine.recorder import Work
from hotlap.engine.seam import Resident
from hotlap.engine.snapshot import Snapshot
from hotlap.engine.steps import Common
from hotlap.engine.update import Found, LossOf


class ResidentSteps(Common):
    def __init__(self, source: Resident, *common: Any) -> None:
        super().__init__(*common)
        self.source = source
        geometry = self.geometry
        full, window_rows = geometry.full, geometry.window_rows
        # Written in place at each epoch: a graph reads it. It has room for a window behind the last.
        self.order = torch.zeros((full + 1) * window_rows, dtype=torch.int64, device=self.device)
        self.by_window = self.order[: full * window_rows].view(full, window_rows)
        self.tail_order = self.order[full * window_rows : geometry.rows]
        self.run_full: Work | None = None
        self.run_tail: Work = self._tail
        self.ahead: Ahead | None = None
        self.coming: tuple[int, Tensor] | None = None  # an epoch and its order

    def foresee(self, epoch: int) -> None:
        self.coming = epoch, self.order_of(self.source, epoch, self.device)

    def begin(self, epoch: int, first: int) -> None:
        if self.coming is None or self.coming[0] != epoch:
            self.foresee(epoch)
        assert self.coming is not None
        self.order[: self.geometry.rows].copy_(self.coming[1][: self.geometry.rows])
        self.coming = None
        self.update.tally.begin(first)
        if self.ahead is not None and first < self.geometry.full:
            self.ahead.begin()

    def snapshot(self) -> Snapshot:
        snapshot = super().snapshot()
        if self.ahead is not None:
            snapshot.add(self.ahead.batch)
        return snapshot

    def __call__(self, window: int) -> None:
        if window >= self.geometry.full:
            self.run_tail()
        elif self.run_full is not None:
            self.run_full()
        else:
            self._first(window)

    def _first(self, window: int) -> None:
        """Run the first step as it is: it makes the optimizer's state, which no replay could."""
        if self.primed:
            with self.preparing():
                self._choose(window, 0.0)
            assert self.run_full is not None
            self.run_full()
            return
        self.rehearse(self._parts(self._index()))
        started = time.perf_counter()
        self._full(self.plain_loss)
        self.primed = True
        self.finish()
        seconds = time.perf_counter() - started
        if window + 1 < self.geometry.full:
            with self.preparing():
                self._choose(window + 1, seconds)

    def _choose(self, window: int, seconds: float) -> None:
        def work(mode: Mode) -> Work:
            loss_of = self.loss_of(mode)
            if isinstance(loss_of, Forks) and self.ahead is not None:
                return partial(self._full_ahead, loss_of, self.ahead)
            return lambda: self._full(loss_of)

        if self._may_gather_ahead():
            self.ahead = Ahead(self.source, self.order.view(-1, self.geometry.window_rows), self.update.tally.step)
        chosen = self.choose(work, self.geometry.full - window, seconds)
        if not chosen.mode.forked:
            self.ahead = None
        self.run_full = chosen.run
        if chosen.mode.graph and self.geometry.tail:
            self.run_tail = self._captured_tail()

    def _captured_tail(self) -> Work:
        trial = self.trial(lambda mode: self._tail, 1)
        try:
            return choose(trial, self.recipe, Mode(graph=True, way=present())).run
        finally:
            trial.snapshot.put_back()

    def _may_gather_ahead(self) -> bool:
        """Allow plain tensors only: a mapped source may draw random numbers, even for a batch that is never used."""
        return self._may_fork() and type(self.source) is Tensors and self.geometry.accumulate == 1

    def _full_ahead(self, forks: Forks, coming: Ahead) -> None:
        forks.loss_of, forks.last = self.update.forward, coming.put
        with forks.beside():
            coming.fetch()
        self.update([coming.batch], self.geometry.window, forks)

    def _full(self, loss_of: LossOf) -> None:
        self.update(self._parts(self._index()), self.geometry.window, loss_of)

    def _index(self) -> Tensor:
        """Return the rows of the window the device is at."""
        return self.by_window.index_select(0, self.update.tally.step).view(-1)

    def _tail(self) -> None:
        self.update(self._parts(self.tail_order), self.geometry.tail, self.plain_loss)

    def _parts(self, index: Tensor) -> list[Tensor]:
        size = self.geometry.batch_size
        return [index[first : first + size] for first in range(0, len(index), size)]

    def plain_loss(self, item: Any) -> Found:
        """Gather the rows with the loss: one batch at a time is in memory, and a compiler sees the gather too."""
        return self.update.forward(with_rows(self.source.gather(item), len(item)))

"""The steps of streamed data: a window is copied to where the graph reads it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from hotlap.engine.choice import Mode
from hotlap.engine.data.errors import DataMismatch
from hotlap.engine.data.sources import with_rows
from hotlap.engine.recorder import Work
from hotlap.engine.seam import Batch, StreamSource
from hotlap.engine.steps import Common
from hotlap.engine.update import Found


class StreamedSteps(Common):
    def __init__(self, source: StreamSource, *common: Any) -> None:
        super().__init__(*common)
        self.source = source
        self.batches: Iterator[Batch] = iter(())
        self.replay: Work | None = None
        self.run: Callable[[Sequence[Batch]], None] | None = None
        self.static: list[Batch] = []
        self.shapes_reported = False

    def begin(self, epoch: int, first: int) -> None:
        order = self.order_of(self.source, epoch, torch.device("cpu"))
        rest = order[first * self.geometry.window_rows : self.geometry.rows]
        size, drop = self.geometry.batch_size, self.recipe.drop_last
        self.close_batches()
        self.batches = iter(self.source.batches(rest, size, self.device, drop))
        self.update.tally.begin(first)

    def __call__(self, window: int) -> None:
        sizes = self.geometry.sizes(window)
        came = itertools.islice(self.batches, len(sizes))
        batches = [with_rows(batch, rows) for batch, rows in zip(came, sizes, strict=False)]
        if len(batches) < len(sizes):
            raise DataMismatch(
                f"the data ended early: {len(batches)} of the {len(sizes)} batches of step {window + 1} came, "
                f"but its source reports {self.source.rows} rows"
            )
        if window >= self.geometry.full:
            self.update(batches, sizes, self.plain_loss)
        elif self.run is not None:
            self.run(batches)
        else:
            self._first(window, batches)

    def _first(self, window: int, batches: list[Batch]) -> None:
        self._require_same_stream()
        if not self.primed:
            self.rehearse(batches)
            started = time.perf_counter()
            self.update(batches, self.geometry.window, self.plain_loss)
            self.primed = True
            self.finish()
            self.first_seconds = time.perf_counter() - started
            return
        with self.preparing():
            self._choose(window, batches)
        assert self.run is not None
        self.run(batches)

    def _require_same_stream(self) -> None:
        """Raise where each of several processes reads a part of its own: another part of that would be left out."""
        beginning = getattr(self.source, "beginning", None)
        if self.processes is not None and beginning is not None:
            self.processes.alike(lambda: (None, {"a first batch of the iterable data with the checksum": beginning}))

    first_seconds = 0.0

    def _choose(self, window: int, batches: list[Batch]) -> None:
        if self.recorder is not None:
            self.static = [tuple(tensor.clone() for tensor in batch) for batch in batches]
        else:
            self.static = batches

        def work(mode: Mode) -> Work:
            loss_of = self.loss_of(mode)
            return lambda: self.update(self.static, self.geometry.window, loss_of)

        chosen = self.choose(work, self.geometry.full - window, self.first_seconds)
        if chosen.mode.graph:
            self.replay, self.run = chosen.run, self._replayed
        else:
            loss_of = self.loss_of(chosen.mode)
            self.static = []
            self.run = lambda given: self.update(given, self.geometry.window, loss_of)

    def _replayed(self, batches: Sequence[Batch]) -> None:
        if not self._fits(batches):
            self.update(batches, self.geometry.window, self.plain_loss)
            return
        for static, batch in zip(self.static, batches, strict=True):
            torch._foreach_copy_(list(static), list(batch))
        assert self.replay is not None
        self.replay()

    def plain_loss(self, item: Any) -> Found:
        return self.update.forward(item)

    def _fits(self, batches: Sequence[Batch]) -> bool:
        for static, batch in zip(self.static, batches, strict=True):
            shapes = [(tensor.shape, tensor.dtype) for tensor in batch]
            if shapes != [(tensor.shape, tensor.dtype) for tensor in static]:
                if not self.shapes_reported:
                    seen = ", ".join(str(tuple(tensor.shape)) for tensor in batch)
                    was = ", ".join(str(tuple(tensor.shape)) for tensor in static)
                    self.say(f"shapes change within the epoch ({seen} after {was}): such batches run eagerly")
                self.shapes_reported = True
                return False
        return True

    def close_batches(self) -> None:
        """Close the batches: a reader may have threads at work on some that will never be requested."""
        close = getattr(self.batches, "close", None)
        if close is not None:
            close()
        self.batches = iter(())

    def close(self) -> None:
        self.close_batches()
        super().close()

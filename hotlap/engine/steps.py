"""The steps of an epoch, from resident or streamed data: each call is one window, one optimizer step.

Resident data: the order of the epoch lies on the device, and the step itself picks its window by the device's own
count, so a replay needs nothing from the host. Streamed data: a window is copied to where the graph reads it.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hotlap.engine.choice import ExecutionChoice, Mode, Trial, choose, compiled_loss, needs_no_trial
from hotlap.engine.data.errors import DataMismatch
from hotlap.engine.data.sources import Tensors, with_rows
from hotlap.engine.forks import Forks
from hotlap.engine.geometry import Geometry, part_of, part_of_order
from hotlap.engine.next_batch import Ahead
from hotlap.engine.order import order_of
from hotlap.engine.processes import Processes
from hotlap.engine.processor import Way, present, ways_to_try
from hotlap.engine.recipe import Recipe
from hotlap.engine.recorder import Recorder, Work
from hotlap.engine.seam import AnySource, Batch, Resident, StreamSource
from hotlap.engine.snapshot import HostTraces, Snapshot
from hotlap.engine.update import Found, LossOf, Update, beside

Say = Callable[[str], None]


class Steps(Protocol):
    mode: Mode | None
    prepare_seconds: float

    def foresee(self, epoch: int) -> None:
        """Prepare the next epoch as far as possible while the device works on this one."""

    def begin(self, epoch: int, first: int) -> None:
        """Begin an epoch at its window `first`."""

    def __call__(self, window: int) -> None: ...

    def close(self) -> None: ...


class Common:
    """What resident and streamed steps share: when the way to run the step is chosen, and from which state."""

    def __init__(
        self,
        update: Update,
        model: nn.Module,
        geometry: Geometry,
        recipe: Recipe,
        recorder: Recorder | None,
        say: Say,
        processes: Processes | None = None,
    ) -> None:
        self.update, self.model, self.recipe, self.processes = update, model, recipe, processes
        self.shared_geometry = geometry
        self.geometry = geometry if processes is None else part_of(geometry, processes.rank, processes.count)
        loss = beside(update.forward.loss, update.forward.step)
        self.whole = model if loss is None else nn.ModuleDict({"model": model, "loss": loss})
        self.recorder, self.say = recorder, say
        self.device = update.tally.device
        self.mode: Mode | None = None
        self.wanted: Mode | None = None  # what a resumed run was trained with
        self.primed = False
        self.steps_ahead = 0
        self.prepare_seconds = 0.0
        self._compiled: LossOf | None = None

    def snapshot(self) -> Snapshot:
        update = self.update
        tensors = [*self.whole.parameters(), *self.whole.buffers(), update.tally.step, update.tally.losses]
        tensors += [metric.totals for metric in update.metrics.values()]
        tensors += update.average.tensors if update.average is not None else []
        counters = [(update.learning, "next_step")]
        return Snapshot(tensors, self.whole, update.optimizer, update.scaler, counters, self.recorder is not None)

    def trial(self, work: Callable[[Mode], Work], windows: int) -> Trial:
        def traces() -> HostTraces:
            return HostTraces(self.whole, self.device)

        parameters, ways = self.update.parameters, self._ways()
        return Trial(
            work, self.snapshot(), traces, parameters, self.recorder, windows, self.steps_ahead, ways, self._may_fork()
        )

    def _may_fork(self) -> bool:
        """Return whether the step may fork: not where numbers are cast or the backward pass repeats a forward."""
        casts, again = self.recipe.precision not in ("fp32", "tf32"), self.recipe.activation_checkpointing
        return self.recorder is not None and self.recorder.lanes() is not None and not casts and not again

    def _ways(self) -> tuple[Way, ...]:
        if self.recorder is not None:
            return (present(),)
        return ways_to_try(self.recipe, self.model, self.device, self.steps_ahead)

    def choose(self, work: Callable[[Mode], Work], windows: int, seconds: float) -> ExecutionChoice:
        """Choose how to run the step; `seconds` is what a step has taken so far."""
        if self.processes is not None:  # each process would measure, and choose, for itself
            mode = self.wanted or Mode(compiled=self.recipe.compile == "on", way=present())
            self.mode = mode
            self.say(f"step: {mode}, {self.processes.count} processes, {len(self.update.parameters)} tensors trained")
            return ExecutionChoice(mode, work(mode), "")
        alone = needs_no_trial(self.recipe, self.recorder is not None, seconds * self.steps_ahead)
        only = self._ways()
        if self.wanted is None and alone and len(only) == 1:
            mode = Mode(way=only[0])  # by name: a resumed run is trained the same way
            chosen = ExecutionChoice(mode, work(mode), "step: eager")
        else:
            chosen = choose(self.trial(work, windows), self.recipe, self.wanted)
        self.mode = chosen.mode
        self.say(f"{chosen.line}, {len(self.update.parameters)} tensors trained")
        return chosen

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Count the time within apart from training; the device is idle before and after."""
        self.finish()  # HOST SYNC: a few per phase
        started = time.perf_counter()
        try:
            yield
        finally:
            self.finish()
            self.prepare_seconds += time.perf_counter() - started

    def order_of(self, source: AnySource, epoch: int, device: torch.device) -> Tensor:
        """Return the rows of an epoch that this process trains on."""
        rows = None if self.recipe.steps_per_epoch is None else self.shared_geometry.rows
        order = order_of(source, self.recipe.seed, epoch, device, self.recipe.shuffle, rows)
        if self.processes is None:
            return order
        return part_of_order(order, self.shared_geometry, self.processes.rank, self.processes.count)

    def finish(self) -> None:
        if self.recorder is not None:
            self.recorder.finish()

    def rehearse(self, items: Iterable[Any]) -> None:
        """Run a window forward and backward and undo it to the bit: what a GPU does once per phase, such as loading
        kernels and choosing convolutions by measurement, takes seconds that the first step would pay otherwise.
        """
        if self.recorder is None:
            return
        with self.preparing():
            snapshot = self.snapshot()
            self.update.gradients(items, self.geometry.window, self.plain_loss)
            snapshot.put_back()

    def foresee(self, epoch: int) -> None:
        """Do nothing for streamed data: threads make its batches from the start of the epoch."""

    def plain_loss(self, item: Any) -> Found:
        """Return the loss of one batch of a window."""
        raise NotImplementedError

    def loss_of(self, mode: Mode) -> LossOf:
        if mode.forked:
            lanes = self.recorder.lanes() if self.recorder is not None else None
            assert lanes is not None
            return Forks(lanes, self.update.parameters, self.update.unit, self.plain_loss)
        if not mode.compiled:
            return self.plain_loss
        if self._compiled is None:
            self._compiled = compiled_loss(self.plain_loss)
        return self._compiled

    def close(self) -> None:
        self.update.optimizer.zero_grad(set_to_none=True)


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

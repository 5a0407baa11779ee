"""What the steps of an epoch share, from resident or streamed data: each call is one window, one optimizer step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hotlap.engine.choice import ExecutionChoice, Mode, Trial, choose, compile_asked, needs_no_trial
from hotlap.engine.compilation import CompiledLoss
from hotlap.engine.forks import Forks
from hotlap.engine.geometry import Geometry, part_of, part_of_order
from hotlap.engine.order import order_of
from hotlap.engine.processes import Processes
from hotlap.engine.processor import Way, present, ways_to_try
from hotlap.engine.recipe import Recipe
from hotlap.engine.recorder import Recorder, Work
from hotlap.engine.regions import ByRegion, regions
from hotlap.engine.seam import AnySource
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
        self.geometry = (
            geometry if processes is None else part_of(geometry, processes.rank, processes.count, processes.shards)
        )
        loss = beside(update.forward.loss, update.forward.step)
        self.whole = model if loss is None else nn.ModuleDict({"model": model, "loss": loss})
        self.recorder, self.say = recorder, say
        self.device = update.tally.device
        self.mode: Mode | None = None
        self.wanted: Mode | None = None  # what a resumed run was trained with
        self.primed = False
        self.steps_ahead = 0
        self.prepare_seconds = 0.0
        self._compiled: dict[tuple[bool, bool], LossOf] = {}  # by region or as a whole, autotuned or not

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
        may_fork, has_regions = self._may_fork(), bool(regions(self.model))
        return Trial(
            work, self.snapshot(), traces, parameters, self.recorder, windows, self.steps_ahead, ways, may_fork,
            has_regions,
        )  # fmt: skip

    def _may_fork(self) -> bool:
        """Return whether the step may fork: not where numbers are cast or the backward pass repeats a forward."""
        casts, again = self.recipe.precision not in ("fp32", "tf32"), self.recipe.activation_checkpointing
        forks = self.recorder is not None and self.recorder.lanes() is not None and not self.update.by_loss
        return forks and not casts and not again

    def _ways(self) -> tuple[Way, ...]:
        if self.recorder is not None:
            return (present(),)
        return ways_to_try(self.recipe, self.model, self.device, self.steps_ahead)

    def choose(self, work: Callable[[Mode], Work], windows: int, seconds: float) -> ExecutionChoice:
        """Choose how to run the step; `seconds` is what a step has taken so far."""
        if self.processes is not None:  # each process would measure, and choose, for itself
            asked = compile_asked(self.recipe, bool(regions(self.model)))
            mode = self.wanted or replace(asked, way=present())
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
        rank, count, stands_in = self.processes.rank, self.processes.count, self.geometry.tail.stands_in
        return part_of_order(order, self.shared_geometry, rank, count, stands_in)

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
        how = mode.regions, mode.autotuned
        if how not in self._compiled:
            by_region = mode.regions and regions(self.model)
            is_whole = self.recipe.compile == "fullgraph"
            self._compiled[how] = (
                ByRegion(self.plain_loss, by_region)
                if by_region
                else CompiledLoss(self.plain_loss, self.say, is_whole, mode.autotuned)
            )
        return self._compiled[how]

    def close(self) -> None:
        self.update.optimizer.zero_grad(set_to_none=True)
        vars(self).clear()  # some of it refers back: data and its workers would stay until garbage is collected

"""From what the agent counted to the record it leaves."""

from __future__ import annotations

import math
import os
import sys
from itertools import pairwise, zip_longest
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, sleep
from typing import TYPE_CHECKING

from hotlap.observe import surroundings
from hotlap.observe.clock import spread
from hotlap.observe.loaders import TRAIN, Seen
from hotlap.observe.models import describe
from hotlap.observe.steps import Boundary
from hotlap.records.caution import Caution
from hotlap.records.codec import SCHEMA
from hotlap.records.observation import EVALUATION, PHASES, HotLine, Observation, Span, Sync, Warmup
from hotlap.records.part import Counts, Part
from hotlap.records.progress import LOOKING

if TYPE_CHECKING:
    from hotlap.observe.agent import Agent

_EVALUATION = PHASES.index(EVALUATION)
POLL_SECONDS = 5.0


class Tally:
    """The timed window: its boundaries, and the counts at both ends."""

    def __init__(self) -> None:
        self._first: Boundary | None = None
        self._boundaries: list[Boundary] = []
        self._warm: list[tuple[Boundary, dict[Seen, tuple[int, int]]]] = []
        self._counts: dict[Seen, tuple[int, int]] = {}
        self._final_counts: dict[Seen, tuple[int, int]] | None = None  # None: still measuring
        self._call_sizes: list[int] = []
        self._call_size: int | None = None
        self._ended_size: int | None = None
        self.warmup = Warmup(steps=0, seconds=0.0, settled=False)
        self.skipped = 0
        self.look_steps = 0
        self.spans: dict[str, tuple[float, float]] = {}

    def warm(self, boundary: Boundary, counts: dict[Seen, tuple[int, int]]) -> None:
        self._warm.append((boundary, counts))

    def make_do_with_warmup(self) -> None:
        """The program ended before warming up did: what came after its first step is all there is."""
        if self._warm:
            boundary, counts = self._warm[0]
            self.begin(boundary, counts, Warmup(steps=1, seconds=0.0, settled=False))
            self._boundaries = [later for later, _ in self._warm[1:]]

    def begin(self, boundary: Boundary, counts: dict[Seen, tuple[int, int]], warmup: Warmup) -> None:
        self._first, self._counts, self.warmup = boundary, counts, warmup
        self._boundaries.clear()
        self._call_sizes.clear()

    def end(self, counts: dict[Seen, tuple[int, int]], spans: dict[str, list[float]]) -> None:
        self._final_counts = counts
        self.spans = {name: (row[0], row[1]) for name, row in spans.items()}

    def add(self, boundary: Boundary) -> None:
        self._boundaries.append(boundary)

    def called_with(self, size: int) -> None:
        """The root module was called for training; the first call of a step tells its batch size."""
        if self._call_size is None:
            self._call_size = size

    def optimizer_ended(self) -> None:
        self._ended_size = self._ended_size or self._call_size
        self._call_size = None

    def close_step(self) -> None:
        self._call_sizes.append(self._ended_size or 0)
        self._ended_size = None

    @property
    def steps(self) -> int:
        return len(self._boundaries)

    @property
    def steps_seen(self) -> float:
        """The steps looked into: syncs and copies were counted in them alone."""
        if self._first is None or not self._boundaries:
            return 0.0
        first, last = self._first, self._boundaries[-1]
        return self.steps * (last.seen - first.seen) / max(1, last.optimizer_steps - first.optimizer_steps)

    @property
    def seconds(self) -> float:
        return (self._boundaries[-1].at - self._first.at) / 1e9 if self._first and self._boundaries else 0.0

    def step_ms(self) -> tuple[float, ...]:
        if self._first is None:
            return ()
        return tuple((end.at - start.at) / 1e6 for start, end in pairwise([self._first, *self._boundaries]))

    def device_step_ms(self) -> tuple[float, ...]:
        """By CUDA events at some steps: the mean step from each to the next. Waits by polling, without a sync."""
        events = [(number, one.event) for number, one in enumerate(self._boundaries) if one.event is not None]
        patience = perf_counter() + POLL_SECONDS
        while events and not events[-1][1].query():
            if perf_counter() > patience:
                return ()
            sleep(0.001)
        return tuple(start.elapsed_time(end) / (j - i) for (i, start), (j, end) in pairwise(events))

    def shares(self, names: list[str]) -> dict[str, float]:
        if self._first is None or not self._boundaries:
            return {}
        spent = self._spent()
        total = sum(spent) or 1.0
        return {name: time / total for name, time in zip(names, spent, strict=False)}

    def _spent(self) -> list[float]:
        assert self._first is not None
        first, last = self._first, self._boundaries[-1]
        return spread(_since(first.totals, last.totals), _since(first.fed, last.fed), _since(first.unseen, last.unseen))

    def batches_and_samples(self, seen: list[Seen]) -> tuple[int, int]:
        now = self._final_counts or {one: (one.batches, one.samples) for one in seen}
        training = [one for one in now if one.role == TRAIN]
        batches = sum(now[one][0] - self._counts.get(one, (0, 0))[0] for one in training)
        samples = sum(now[one][1] - self._counts.get(one, (0, 0))[1] for one in training)
        if not batches:
            return 0, sum(self._call_sizes[: self.steps])
        return batches, samples

    def training_seconds(self) -> float:
        """The window less its evaluations: throughput is of training."""
        if self._first is None or not self._boundaries:
            return 0.0
        return self.seconds - self._spent()[_EVALUATION] / 1e9

    def backwards_per_step(self) -> float:
        if self._first is None or not self._boundaries:
            return 0.0
        return (self._boundaries[-1].backwards - self._first.backwards) / self.steps


def _since(first: list[int], last: list[int]) -> list[int]:
    """What was added; the first may be shorter, for spans that began later."""
    return [end - start for start, end in zip_longest(first, last, fillvalue=0)]


def part_of(agent: Agent, complete: bool) -> Part:
    tally, tracer = agent.tally, agent.look.tracer
    traced = tracer is not None and tracer.saved
    return Part(
        schema=SCHEMA,
        pid=os.getpid(),
        rank=agent.rank,
        world_size=agent.world_size,
        complete=complete,
        counts=Counts(
            optimizers_made=agent.optimizers_made,
            optimizer_steps=agent.story.steps.optimizer_steps,
            loaders_made=agent.loaders.made,
            batches=sum(seen.batches for seen in agent.loaders.seen),
            backwards=agent.losses.backwards,
        ),
        trace_file=tracer.path.name if tracer is not None and traced else None,
        trace_steps=tracer.steps if tracer is not None and traced else 0,
        observation=_observation(agent, tally, complete),
    )


def _observation(agent: Agent, tally: Tally, complete: bool) -> Observation:
    steps = max(1, tally.steps)
    batches, samples = tally.batches_and_samples(agent.loaders.seen)
    seconds = tally.training_seconds()
    step_ms = tally.step_ms()
    finished = complete or agent.ending
    return Observation(
        schema=SCHEMA,
        command=tuple(sys.orig_argv),
        directory=str(Path.cwd()),
        started="",
        machine=surroundings.machine(agent.torch),
        ended="window complete" if complete else "program ended",
        exit_code=None,
        steps=tally.steps,
        steps_seen=round(tally.steps_seen),
        backwards_per_step=tally.backwards_per_step(),
        batches_per_step=batches / steps,
        samples_per_second=samples / seconds if samples and seconds > 0 else None,
        samples_per_step=samples / steps if samples else None,
        step_ms=step_ms,
        device_step_ms=tally.device_step_ms() if finished else (),
        warmup=tally.warmup,
        shares=tally.shares(agent.story.clock.names),
        syncs=_syncs(agent, tally),
        copies=agent.story.copies.rows(tally.steps_seen) if agent.story.copies and tally.steps_seen else (),
        hot_lines=_hot_lines(agent, step_ms),
        spans=_spans(tally, steps),
        losses=agent.losses.values(may_wait=finished),
        loaders=tuple(seen.record() for seen in agent.loaders.seen),
        models=tuple(describe(top) for top in agent.roots.tops),
        optimizers=agent.optimizer_records(),
        settings=surroundings.settings(agent.torch, agent.autocast, agent.grad_scaler),
        device=None,
        memory=surroundings.memory(agent.torch),
        processes=(),
        gpus=(),
        ranks=(),
        ceiling=None,
        trace=None,
        cautions=tuple(caution.name for caution in _cautions(agent, tally, step_ms)),
    )


def _syncs(agent: Agent, tally: Tally) -> tuple[Sync, ...]:
    if agent.story.syncs is None:
        return ()
    closed = agent.story.steps.closed or 1
    return agent.story.syncs.rows(tally.steps_seen, agent.story.steps.optimizer_steps / closed)


def _hot_lines(agent: Agent, step_ms: tuple[float, ...]) -> tuple[HotLine, ...]:
    lines = agent.look.lines
    if lines is None or (agent.state == LOOKING and not agent.ending):
        return ()
    return lines.rows(sum(step_ms) / len(step_ms) if step_ms else 0.0)


def _spans(tally: Tally, steps: int) -> tuple[Span, ...]:
    return tuple(
        Span(name=name, per_step=calls / steps, ms_per_step=1000 * seconds / steps)
        for name, (calls, seconds) in tally.spans.items()
    )


def _cautions(agent: Agent, tally: Tally, step_ms: tuple[float, ...]) -> list[Caution]:
    found = []
    if step_ms and not tally.warmup.settled:
        found.append(Caution.WARMUP_NOT_SETTLED)
    if 0 < len(step_ms) < 10:
        found.append(Caution.FEW_STEPS)
    if _noisy(step_ms):
        found.append(Caution.NOISY)
    if tally.shares(agent.story.clock.names).get(EVALUATION, 0.0) > 0:
        found.append(Caution.EVALUATION_INSIDE)
    if step_ms and not agent.losses.seen:
        found.append(Caution.LOSS_UNSEEN)
    if step_ms and not agent.roots.seen:
        found.append(Caution.ROOT_UNSEEN)
    if tally.skipped:
        found.append(Caution.SKIPPED_STEPS)
    if agent.seams.guard.failures:
        found.append(Caution.OWN_ERROR)
    return found


def _noisy(step_ms: tuple[float, ...]) -> bool:
    """The middle half of the steps is spread over more than half of the median."""
    if len(step_ms) < 10 or not all(map(math.isfinite, step_ms)):
        return False
    low, _, high = quantiles(step_ms, n=4)
    return high - low > 0.5 * median(step_ms)

"""Turns what the agent counted into the record it writes."""

from __future__ import annotations

import math
import os
import sys
from statistics import median, quantiles

from hotlap.observe import surroundings
from hotlap.observe.agent_state import AgentState
from hotlap.observe.models import describe
from hotlap.observe.tally import Tally
from hotlap.records import private
from hotlap.records.caution import Caution
from hotlap.records.codec import SCHEMA
from hotlap.records.observation import EVALUATION, HotLine, Observation, Span, Sync
from hotlap.records.part import Counts, Part
from hotlap.records.progress import LOOKING


def part_of(known: AgentState, complete: bool) -> Part:
    tally, tracer = known.tally, known.look.tracer
    traced = tracer is not None and tracer.saved
    return Part(
        schema=SCHEMA,
        pid=os.getpid(),
        rank=known.rank,
        world_size=known.world_size,
        complete=complete,
        counts=Counts(
            optimizers_made=known.optimizers_made,
            optimizer_steps=known.story.steps.optimizer_steps,
            loaders_made=known.loaders.made,
            batches=sum(seen.batches for seen in known.loaders.seen),
            backwards=known.losses.backwards,
        ),
        trace_file=tracer.path.name if tracer is not None and traced else None,
        trace_steps=tracer.steps if tracer is not None and traced else 0,
        observation=_observation(known, tally, complete),
    )


def _observation(known: AgentState, tally: Tally, complete: bool) -> Observation:
    steps = max(1, tally.steps)
    batches, samples = tally.batches_and_samples(known.loaders.seen)
    seconds = tally.training_seconds()
    step_ms = tally.step_ms()
    finished = complete or known.ending
    return Observation(
        schema=SCHEMA,
        command=tuple(sys.orig_argv),
        directory=private.current_folder(),
        started="",
        machine=surroundings.machine(known.torch),
        ended="window complete" if complete else "program ended",
        exit_code=None,
        steps=tally.steps,
        steps_seen=round(tally.steps_seen),
        backwards_per_step=tally.backwards_per_step(),
        batches_per_step=batches / steps,
        samples_per_second=samples / seconds if samples and seconds > 0 else None,
        samples_per_step=samples / steps if samples else None,
        step_ms=step_ms,
        evaluation_ms=tally.evaluation_ms(),
        device_step_ms=tally.device_step_ms() if finished else (),
        warmup=tally.warmup,
        shares=_shares(known, tally),
        syncs=_syncs(known, tally),
        copies=known.story.copies.rows(tally.steps_seen) if known.story.copies and tally.steps_seen else (),
        hot_lines=_hot_lines(known, tally),
        spans=_spans(tally, steps),
        losses=known.losses.values(may_wait=finished),
        loaders=tuple(seen.record() for seen in known.loaders.seen),
        models=tuple(describe(top) for top in known.roots.tops),
        optimizers=known.optimizer_records(),
        settings=surroundings.settings(known.torch, known.autocast, known.grad_scaler),
        device=None,
        memory=surroundings.memory(known.torch),
        processes=(),
        gpus=(),
        ranks=(),
        ceiling=None,
        trace=None,
        cautions=tuple(caution.name for caution in _cautions(known, tally, step_ms)),
        followed=known.look.follower.lines() if known.look.follower is not None and finished else None,
    )


def _syncs(known: AgentState, tally: Tally) -> tuple[Sync, ...]:
    if known.story.syncs is None:
        return ()
    closed = known.story.steps.closed or 1
    return known.story.syncs.rows(tally.steps_seen, known.story.steps.optimizer_steps / closed)


def _hot_lines(known: AgentState, tally: Tally) -> tuple[HotLine, ...]:
    lines, step_ms = known.look.lines, tally.step_ms()
    if lines is None or not step_ms or (known.state == LOOKING and not known.ending):
        return ()
    return lines.rows(sum(step_ms) / len(step_ms), _shares(known, tally))


def _shares(known: AgentState, tally: Tally) -> dict[str, float]:
    shares = tally.shares(known.story.clock.names)
    return known.look.lines.with_every_forward(shares) if known.look.lines is not None else shares


def _spans(tally: Tally, steps: int) -> tuple[Span, ...]:
    return tuple(
        Span(name=name, per_step=calls / steps, ms_per_step=1000 * seconds / steps)
        for name, (calls, seconds) in tally.spans.items()
    )


def _cautions(known: AgentState, tally: Tally, step_ms: tuple[float, ...]) -> list[Caution]:
    found = []
    if step_ms and not tally.warmup.settled:
        found.append(Caution.WARMUP_NOT_SETTLED)
    if 0 < len(step_ms) < 10:
        found.append(Caution.FEW_STEPS)
    if _noisy(step_ms):
        found.append(Caution.NOISY)
    if tally.shares(known.story.clock.names).get(EVALUATION, 0.0) > 0:
        found.append(Caution.EVALUATION_INSIDE)
    if step_ms and not known.losses.seen:
        found.append(Caution.LOSS_UNSEEN)
    if step_ms and not known.roots.seen:
        found.append(Caution.ROOT_UNSEEN)
    if tally.skipped:
        found.append(Caution.SKIPPED_STEPS)
    if known.seams.guard.failures:
        found.append(Caution.OWN_ERROR)
    return found


def _noisy(step_ms: tuple[float, ...]) -> bool:
    """Whether the middle half of the steps spreads over more than half of the median."""
    if len(step_ms) < 10 or not all(map(math.isfinite, step_ms)):
        return False
    low, _, high = quantiles(step_ms, n=4)
    return high - low > 0.5 * median(step_ms)

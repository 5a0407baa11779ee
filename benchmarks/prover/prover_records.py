"""Scripted processes and trials, as the judge takes them: no process is started for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hotlap.records.plan import Choice, Risk
from hotlap.records.trial import Block, EndReason, MetricValue, Sample, Trial, TrialStage
from hotlap.records.tune_record import Metric, TuneRequest

ENTRY = "planted"


def blocks(seconds: Sequence[float], samples: float = 64.0, steps: int = 1) -> tuple[Block, ...]:
    return tuple(
        Block(first=number * steps, steps=steps, samples=samples, seconds=elapsed)
        for number, elapsed in enumerate(seconds)
    )


def sample(
    arm: str = "base",
    losses: Iterable[float] = (),
    seconds: Sequence[float] = (1.0, 1.0),
    *,
    seed: int = 0,
    nudge: float = 0.0,
    readings: Iterable[MetricValue] = (),
    number: int = 0,
) -> Sample:
    return Sample(
        number=number,
        arm=arm,
        choices=(Choice(name=ENTRY),) if arm == "new" else (),
        seed_shift=seed,
        ended=EndReason.MEASURED,
        why="",
        warmup_steps=2,
        warmup_seconds=1.0,
        startup_seconds=1.0,
        blocks=blocks(seconds),
        losses=tuple(losses),
        readings=tuple(readings),
        outcomes=(),
        host_mb=None,
        device_mb=None,
        seconds=10.0,
        nudge=nudge,
    )


def trial(samples: Iterable[Sample], risk: Risk = Risk.ROUNDING, stage: TrialStage = TrialStage.ALONE) -> Trial:
    return Trial(
        schema=1,
        name=f"{stage}-{ENTRY}",
        stage=stage,
        entry=ENTRY,
        value=None,
        base=(),
        new=(Choice(name=ENTRY),),
        risk=risk,
        samples=tuple(samples),
    )


def noise_trial(base: Iterable[Sample], again: Iterable[Sample]) -> Trial:
    """The baseline against itself."""
    both = [*base, *(replace(sample, arm="new", choices=()) for sample in again)]
    return replace(trial(both, Risk.EXACT, TrialStage.NOISE), name="noise", entry=None, new=())


def asked(risk: Risk = Risk.NUMERIC, minimum: float = 1.02, metric: Metric | None = None) -> TuneRequest:
    return TuneRequest(
        command=("python", "train.py"),
        budget_seconds=600.0,
        risk=risk,
        metric=metric,
        steps=None,
        minimum=minimum,
        folder=".",
    )

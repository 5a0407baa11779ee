"""Aggregates over the processes of a trial: speed, warm-up, memory, and which of them broke."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hotlap.records.trial import EndReason, Sample, Trial, TrialStage
from hotlap.records.tune_record import TuneRecord
from hotlap.records.verdict import Speed, Verdict
from hotlap.report.tune.parts import Interval

BASE, NEW = "base", "new"


def step_ms(samples: Sequence[Sample]) -> float | None:
    steps = sum(block.steps for sample in samples for block in sample.blocks)
    seconds = sum(block.seconds for sample in samples for block in sample.blocks)
    return 1000 * seconds / steps if steps else None


def rate(samples: Sequence[Sample]) -> float | None:
    """Return samples per second over all blocks."""
    count = sum(block.samples for sample in samples for block in sample.blocks)
    seconds = sum(block.seconds for sample in samples for block in sample.blocks)
    return count / seconds if seconds > 0 and count > 0 else None


def mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def measured(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    return tuple(sample for sample in samples if sample.ended == EndReason.MEASURED)


def broken(trial: Trial) -> tuple[Sample, ...]:
    return tuple(sample for sample in trial.samples if sample.ended != EndReason.MEASURED)


def interval(speed: Speed | None) -> Interval | None:
    return Interval(speed.ratio, speed.low, speed.high) if speed else None


def final_trial(tuning: TuneRecord) -> Trial | None:
    """Return the last final trial, since a resumed tune may repeat it, or the trial that proved the speed-up."""
    found = next((trial for trial in reversed(tuning.trials) if trial.stage == TrialStage.FINAL), None)
    if found is None and tuning.speedup is not None:
        return next((trial for trial in tuning.trials if trial.name == tuning.speedup.trial), None)
    return found


def verdict_of(tuning: TuneRecord, stage: TrialStage) -> Verdict | None:
    return next((verdict for verdict in reversed(tuning.verdicts) if verdict.stage == stage), None)


def baseline(tuning: TuneRecord) -> tuple[Sample, ...]:
    """Return every process that ran the unchanged program."""
    return tuple(
        sample
        for trial in tuning.trials
        for sample in trial.samples
        if not sample.choices and _unchanged(trial, sample)
    )


def _unchanged(trial: Trial, sample: Sample) -> bool:
    return not (trial.base if sample.arm == BASE else trial.new)

"""The loss curves of a trial by seed, and the reasons why they may be no evidence at all."""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotlap.records.trial import EndReason, Sample, Trial
from hotlap.records.tune_record import Metric

Curve = tuple[float, ...]
FEWEST_STEPS = 16  # a gate over fewer says nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Curves:
    """Loss curves by seed shift, all cut to the same length."""

    steps: int
    base: Mapping[int, tuple[Curve, ...]]
    new: Mapping[int, tuple[Curve, ...]]
    parted: tuple[tuple[Curve, Curve], ...]  # pairs of runs of one program with one seed that are not bit-equal
    repeats: bool | None  # whether `base` gives the same losses twice; None: no seed was run twice

    @property
    def seeds(self) -> list[int]:
        """The seeds that both arms ran with."""
        return sorted(set(self.base) & set(self.new))


def baseline(trial: Trial, noise: Trial | None) -> list[Sample]:
    """Return every process of this trial and the noise trial that ran `trial.base`, nudged or not."""
    program = {(choice.name, choice.value) for choice in trial.base}
    return [sample for sample in _unchanged(trial, noise) if _program(sample) == program]


def _unchanged(trial: Trial, noise: Trial | None) -> list[Sample]:
    """Return the base arm and the noise trial, which ran another program if this trial stacks on kept optimisations."""
    others = noise.samples if noise is not None and noise is not trial else ()
    return [sample for sample in (*trial.of("base"), *others) if sample.ended == EndReason.MEASURED]


def _program(sample: Sample) -> frozenset[tuple[str, str | None]]:
    return frozenset((choice.name, choice.value) for choice in sample.choices)


def curves(trial: Trial, noise: Trial | None, earlier: Sequence[Sample] = ()) -> Curves:
    """Return both arms' curves. `earlier` ran as `base` in other trials and shows how far that strays from itself."""
    new = [sample for sample in trial.of("new") if sample.ended == EndReason.MEASURED]
    own = [sample for sample in trial.of("base") if sample.ended == EndReason.MEASURED] or baseline(trial, noise)
    steps = min((len(sample.losses) for sample in (*own, *new)), default=0)
    base = [sample for sample in baseline(trial, noise) if len(sample.losses) >= steps]
    unchanged = [*_unchanged(trial, noise), *(sample for sample in earlier if sample.ended == EndReason.MEASURED)]
    return Curves(
        steps=steps,
        base=_by_seed([sample for sample in base if not sample.nudge], steps),
        new=_by_seed(new, steps),
        parted=_parted(_alike(unchanged, steps)),
        repeats=_repeats(trial, [sample for sample in unchanged if not sample.nudge], steps),
    )


def _alike(samples: Iterable[Sample], steps: int) -> list[list[Curve]]:
    """Group the runs of one program with one seed; within a group, those without a nudge come first."""
    groups: dict[Any, list[Curve]] = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: sample.nudge):
        if len(sample.losses) >= steps:
            groups[_program(sample), sample.seed_shift].append(sample.losses[:steps])
    return list(groups.values())


def _parted(groups: Iterable[Sequence[Curve]]) -> tuple[tuple[Curve, Curve], ...]:
    """Return pairs of runs that differ, of both baselines: what is kept hardly changes how fast a difference grows."""
    pairs: dict[Curve, tuple[Curve, Curve]] = {}
    for first, *others in groups:
        for other in others:
            if first_difference(first, other) is not None:
                pairs[other] = (other, first)  # runs that are alike count once
    return tuple(pairs.values())


def _repeats(trial: Trial, unchanged: Sequence[Sample], steps: int) -> bool | None:
    """Say whether `base` repeats itself, or else the bare baseline: what is kept may add up in a different order."""
    program = {(choice.name, choice.value) for choice in trial.base}
    for samples in ([sample for sample in unchanged if _program(sample) == program], unchanged):
        twice = [group for group in _alike(samples, steps) if len(group) > 1]
        if twice:
            return all(first_difference(group[0], other) is None for group in twice for other in group[1:])
    return None


def _by_seed(samples: Iterable[Sample], steps: int) -> dict[int, tuple[Curve, ...]]:
    found: dict[int, list[Curve]] = defaultdict(list)
    for sample in samples:
        found[sample.seed_shift].append(sample.losses[:steps])
    return {seed: tuple(group) for seed, group in found.items()}


def harm_seen(trial: Trial, noise: Trial | None) -> str | None:
    """Return what rejects the new arm on its own, whatever its curves look like."""
    lengths = [len(sample.losses) for sample in baseline(trial, noise)]
    for sample in trial.of("new"):
        if sample.ended != EndReason.MEASURED:
            continue
        bad = next((step for step, loss in enumerate(sample.losses) if not math.isfinite(loss)), None)
        if bad is not None:
            return f"the loss of step {bad} is not finite"
        if lengths and not min(lengths) <= len(sample.losses) <= max(lengths):
            return f"{len(sample.losses)} losses where the baseline has {_range(lengths)}"
    return None


def evidence_missing(trial: Trial, noise: Trial | None, found: Curves) -> str | None:
    """Return why the losses prove nothing at all, or None."""
    if not found.new:
        return "no process of the new arm was measured"
    if not found.base:
        return "no process of the baseline was measured"
    if found.steps == 0:
        return "no losses were seen: hotlap finds them where backward() is called on them"
    if found.steps < FEWEST_STEPS:
        return f"only {found.steps} losses were seen, but {FEWEST_STEPS} are needed: raise --steps"
    whole = [loss for sample in baseline(trial, noise) for loss in sample.losses]
    if not all(math.isfinite(loss) for loss in whole):
        return "the baseline's own loss is not finite"
    if all(len(set(curve)) == 1 for group in found.base.values() for curve in group):
        return "the baseline's loss never changes, so it shows nothing"
    if not found.seeds:
        return "no seed was run with both arms"
    return None


def _range(lengths: Sequence[int]) -> str:
    return str(lengths[0]) if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"


def first_difference(curve: Sequence[float], other: Sequence[float]) -> int | None:
    """Return the first step whose loss differs in any bit."""
    for step, (left, right) in enumerate(zip(curve, other, strict=True)):
        if struct.pack("<d", left) != struct.pack("<d", right):
            return step
    return None


def last_reading(sample: Sample, metric: Metric) -> float | None:
    values = [(reading.step, reading.value) for reading in sample.readings if reading.name == metric.name]
    return max(values, key=lambda pair: pair[0])[1] if values else None


def readings(samples: Iterable[Sample], metric: Metric) -> dict[int, list[float]]:
    """Return the last value of the metric in every process, by seed; only finite ones."""
    found: dict[int, list[float]] = defaultdict(list)
    for sample in samples:
        value = last_reading(sample, metric)
        if value is not None and math.isfinite(value):
            found[sample.seed_shift].append(value)
    return dict(found)

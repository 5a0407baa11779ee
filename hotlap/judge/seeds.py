"""Quality over several seeds, each run with both arms: the mean of the paired differences and its t interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hotlap.judge.curves import Curve, Curves
from hotlap.judge.power import student

FEWEST_SEEDS = 3
MOST_SEEDS = 30
LAST = 4  # the loss is taken from the last quarter of the steps
LEAST_MARGIN, MOST_MARGIN = 0.005, 0.1  # of the loss; the spread of a few seeds is itself uncertain


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedDifferences:
    """The differences new minus base over the seeds that both arms ran with."""

    seeds: int
    mean: float
    low: float
    high: float
    deviation: float  # between the differences
    level: float  # mean of the baseline
    spread: float  # standard deviation between the baseline's seeds

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2


def paired(
    base: Mapping[int, Sequence[float]], new: Mapping[int, Sequence[float]], confidence: float
) -> PairedDifferences | None:
    """Return the paired differences, or None with fewer than three seeds; processes of one seed count by their mean."""
    seeds = sorted(set(base) & set(new))
    if len(seeds) < FEWEST_SEEDS:
        return None
    gaps = [_mean(new[seed]) - _mean(base[seed]) for seed in seeds]
    every = [_mean(values) for values in base.values()]
    deviation, middle = _deviation(gaps), _mean(gaps)
    half = student(len(gaps) - 1, confidence) * deviation / math.sqrt(len(gaps))
    return PairedDifferences(
        seeds=len(seeds),
        mean=middle,
        low=middle - half,
        high=middle + half,
        deviation=deviation,
        level=_mean([abs(value) for value in every]),
        spread=_deviation(every),
    )


def final_losses(group: Mapping[int, tuple[Curve, ...]]) -> dict[int, list[float]]:
    """Return the mean loss over the last quarter of the steps, by seed."""
    return {seed: [_mean(curve[-max(1, len(curve) // LAST) :]) for curve in curves] for seed, curves in group.items()}


def loss_margin(found: PairedDifferences) -> float:
    """Return one standard deviation between the baseline's seeds, limited to 0.5 % to 10 % of the loss."""
    return min(max(found.spread, LEAST_MARGIN * found.level), MOST_MARGIN * found.level)


def seeds_needed(found: PairedDifferences, margin: float, confidence: float) -> int:
    """Return how many more seeds would bring the interval inside the margin if the mean stayed the same.

    If the mean lies outside the margin, return as many again, so that it may move.
    """
    room = margin - abs(found.mean)
    if room <= 0:
        return found.seeds
    for seeds in range(found.seeds + 1, MOST_SEEDS):
        if student(seeds - 1, confidence) * found.deviation / math.sqrt(seeds) <= room:
            return seeds - found.seeds
    return MOST_SEEDS - found.seeds if found.seeds < MOST_SEEDS else 1


def missing_seeds(found: Curves) -> int:
    return FEWEST_SEEDS - len(found.seeds)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    middle = _mean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1)) if len(values) > 1 else 0.0

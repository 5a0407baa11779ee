"""Computes how many times faster one arm is than another, with a 95 % interval.

The ratio compares throughputs: all samples over all seconds of one arm, divided by the same of the other. It is not a
mean of ratios, which a single slow epoch would tilt.

What is resampled (scipy.stats.bootstrap):

- three runs or more of both arms: whole runs, each with all its epochs, because epochs of one run share its luck
  (a cluster bootstrap);
- fewer runs: single epochs, pooled over the runs. This hardly sees the spread from run to run, and `resampled` says so;
- only one epoch in either arm: nothing can be resampled and there is no interval.

The interval is BCa where that is defined, and percentile where it degenerates (all samples alike, or too few). A
bootstrap of n samples spreads too little, by sqrt((n - 1) / n), and uses the normal quantile where few samples call
for Student's: both ends are moved away from the ratio, on a log scale, by the product of the two corrections. For 3 + 3
runs that is 1.7; without it, such an interval covers 81 % instead of 95 %.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CONFIDENCE = 0.95
RESAMPLES = 4999
RUNS_TO_RESAMPLE = 3
RUNS, EPOCHS, NOTHING = "runs", "epochs", "nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Samples trained on and the seconds they took: one epoch."""

    samples: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    value: float
    low: float | None  # None: no interval, see `resampled`
    high: float | None
    resampled: str  # RUNS, EPOCHS or NOTHING


Arm = Sequence[Sequence[Work]]  # runs of epochs


def throughput(arm: Arm) -> float:
    """Return samples per second over all runs."""
    total = [_total(run) for run in arm]
    return sum(work.samples for work in total) / sum(work.seconds for work in total)


def ratio(arm: Arm, base: Arm) -> Ratio:
    """Return throughput(arm) / throughput(base) and its interval."""
    value = throughput(arm) / throughput(base)
    by = RUNS if min(len(arm), len(base)) >= RUNS_TO_RESAMPLE else EPOCHS
    first, second = _units(arm, by), _units(base, by)
    if min(len(first), len(second)) < 2:
        return Ratio(value=value, low=None, high=None, resampled=NOTHING)
    low, high = _interval(first, second)
    stretch = _stretch(len(first), len(second))
    return Ratio(
        value=value, low=value * (low / value) ** stretch, high=value * (high / value) ** stretch, resampled=by
    )


def _units(arm: Arm, by: str) -> list[Work]:
    return [_total(run) for run in arm] if by == RUNS else [epoch for run in arm for epoch in run]


def _total(run: Sequence[Work]) -> Work:
    return Work(samples=sum(epoch.samples for epoch in run), seconds=sum(epoch.seconds for epoch in run))


def _interval(first: list[Work], second: list[Work]) -> tuple[float, float]:
    """Return the BCa interval, or the percentile interval where BCa is not defined."""
    for method in ("BCa", "percentile"):
        low, high = _bootstrap(first, second, method)
        if math.isfinite(low) and math.isfinite(high):
            return low, high
    raise ArithmeticError("the bootstrap gave no interval; are there epochs of zero seconds?")


def _bootstrap(first: list[Work], second: list[Work], method: str) -> tuple[float, float]:
    import numpy as np
    from scipy import stats

    samples = [np.array([unit.samples for unit in units], dtype=float) for units in (first, second)]
    seconds = [np.array([unit.seconds for unit in units], dtype=float) for units in (first, second)]

    def statistic(arm: Any, base: Any, axis: int = -1) -> Any:
        """Take resampled positions, because samples and seconds of a unit must be drawn together."""
        speeds = [
            samples[which][drawn.astype(int)].sum(axis) / seconds[which][drawn.astype(int)].sum(axis)
            for which, drawn in enumerate((arm, base))
        ]
        return speeds[0] / speeds[1]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns where BCa degenerates; the caller looks at the result
        found = stats.bootstrap(
            (np.arange(len(first)), np.arange(len(second))),
            statistic,
            n_resamples=RESAMPLES,
            confidence_level=CONFIDENCE,
            method=method,
            vectorized=True,
            random_state=np.random.default_rng(0),  # the same raw samples give the same interval
        ).confidence_interval
    return float(found.low), float(found.high)


def _stretch(first: int, second: int) -> float:
    from scipy import stats

    tail = (1 + CONFIDENCE) / 2
    fewest = min(first, second)
    student = stats.t.ppf(tail, first + second - 2) / stats.norm.ppf(tail)
    return float(math.sqrt(fewest / (fewest - 1)) * student)

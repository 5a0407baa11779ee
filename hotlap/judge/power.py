"""Statistical power: what a sample could show, computed from the spread between processes.

A process has one figure here, the logarithm of its throughput. Two arms of n processes are told apart by the rule of
speed.py, so that rule is simulated many times with numpy on normal draws of the measured spread. The result is exact if
the logarithms of throughput are normal, and never a formula for a different test than the one that decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hotlap.judge.ratio import CONFIDENCE, RUNS_TO_RESAMPLE

POWER = 0.8
DRAWS = 4000
MOST_PROCESSES = 999  # an answer beyond this only says "far too many"


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The standard deviation between alike processes of the logarithm of throughput."""

    deviation: float
    freedom: int  # degrees of freedom it is known with


def spread_of(groups: Iterable[Sequence[float]]) -> Spread | None:
    """Pool groups of alike processes, each around its own mean; None if no group has two processes."""
    squares, freedom = 0.0, 0
    for group in groups:
        if len(group) < 2:
            continue
        mean = sum(group) / len(group)
        squares += sum((value - mean) ** 2 for value in group)
        freedom += len(group) - 1
    return Spread(deviation=math.sqrt(squares / freedom), freedom=freedom) if freedom else None


def student(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Return the two-sided quantile of Student's t distribution."""
    from scipy import stats

    return float(stats.t.ppf((1 + confidence) / 2, freedom))


def band(spread: Spread, base: int, new: int) -> float:
    """Return how far the logarithm of the ratio of two alike arms strays, 19 times in 20."""
    return student(spread.freedom) * spread.deviation * math.sqrt(1 / base + 1 / new)


def chance(spread: Spread, processes: int, effect: float, minimum: float) -> float:
    """Return the chance that this many processes per arm find a true ratio of `effect` faster."""
    import numpy as np

    errors, needed = _simulated(spread.freedom, processes)
    found = math.log(effect) + spread.deviation * errors
    return float(np.mean(found > np.maximum(spread.deviation * needed, math.log(minimum))))


def smallest(spread: Spread, processes: int) -> float:
    """Return the smallest true ratio that is significant with 80 % power."""
    import numpy as np

    errors, needed = _simulated(spread.freedom, processes)
    return math.exp(min(700.0, spread.deviation * float(np.quantile(needed - errors, POWER))))


def processes_needed(spread: Spread, effect: float) -> int:
    """Return the processes per arm that show this ratio with 80 % power; at most MOST_PROCESSES."""
    low, high = 1, 2
    while high < MOST_PROCESSES and smallest(spread, high) > effect:
        low, high = high, 2 * high
    high = min(high, MOST_PROCESSES)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if smallest(spread, middle) > effect else (low, middle)
    return high


@lru_cache(maxsize=256)
def _simulated(known: int, processes: int) -> tuple[Any, Any]:
    """Simulate comparisons of alike arms in units of the spread; return each error and the bound it would have to pass.

    `known` degrees of freedom come from earlier processes; the trial's own processes add theirs.
    """
    import numpy as np

    random = np.random.default_rng(0)
    own = max(processes - 1, 0)
    before = random.chisquare(known, DRAWS) if known else np.zeros(DRAWS)
    base, new = (random.chisquare(own, DRAWS) if own else np.zeros(DRAWS) for _ in range(2))
    errors = random.normal(0, math.sqrt(2 / processes), DRAWS)
    freedom = known + own
    needed = student(freedom) * np.sqrt((before + base) / freedom * 2 / processes) if freedom else np.full(DRAWS, 1e9)
    if processes >= RUNS_TO_RESAMPLE:
        interval = student(2 * own) * np.sqrt((base + new) / own / processes)
        needed = np.maximum(needed, interval)
    return errors, needed

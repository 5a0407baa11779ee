"""How many times as fast blocks of steps are as others of the same run, with a 95 % interval.

Blocks are short and a checkpoint or a pause of the machine may fall into one: logarithms of the times a step, the
highest and lowest fifth left out (Yuen's comparison of trimmed means). It needs no library: it runs in the program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

TRIMMED = 0.2  # at either end
SHARP = 1.4
FEWEST = 3  # blocks of either kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Faster:
    ratio: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """A gain that a machine which has less to do by and by does not feign."""
        return self.low > 1.0 and not self.is_wide

    @property
    def is_wide(self) -> bool:
        """So that it tells neither a gain nor that there is none."""
        return self.high >= SHARP * self.low


def faster(new: Sequence[float], base: Sequence[float]) -> Faster:
    """Seconds a step of blocks with and without."""
    (mean, spread, free), (mean_other, spread_other, free_other) = _trimmed(new), _trimmed(base)
    error = math.sqrt(spread + spread_other)
    if min(len(new), len(base)) < FEWEST:
        return Faster(ratio=math.exp(mean_other - mean), low=0.0, high=math.inf)
    parts = spread**2 / free + spread_other**2 / free_other
    freedom = max(1.0, (spread + spread_other) ** 2 / parts if parts else free + free_other)
    reach = _student(freedom) * error
    return Faster(
        ratio=math.exp(mean_other - mean),
        low=math.exp(mean_other - mean - reach),
        high=math.exp(mean_other - mean + reach),
    )


def _trimmed(seconds: Sequence[float]) -> tuple[float, float, int]:
    """Mean, squared error of the mean, degrees of freedom."""
    logs = sorted(math.log(max(duration, 1e-9)) for duration in seconds)
    cut = int(TRIMMED * len(logs))
    kept = logs[cut : len(logs) - cut]
    mean = sum(kept) / len(kept)
    pulled = [min(max(log, kept[0]), kept[-1]) for log in logs]  # winsorized
    centre = sum(pulled) / len(pulled)
    squares = sum((value - centre) ** 2 for value in pulled)
    free = max(1, len(kept) - 1)
    return mean, squares / (len(kept) * free), free


def _student(freedom: float) -> float:
    """The 97.5 % quantile, within 2 % from 3 degrees of freedom on."""
    return 1.96 + 2.4 / freedom + 4.0 / freedom**2

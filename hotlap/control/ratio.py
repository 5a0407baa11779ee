"""How many times as fast some blocks of steps are as others of the same run, with a 95 % interval.

Blocks are short, and a checkpoint or a pause of the machine may fall into one. So the comparison takes logarithms of
the seconds per step and trims the highest and lowest fifth (Yuen's comparison of trimmed means). It needs no library,
because it runs inside the program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

TRIMMED = 0.2  # share, at either end
SHARP = 1.4  # a high end of the interval this many times the low end, or more, is wide
FEWEST = 3  # blocks of either kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Faster:
    ratio: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether this is a gain, and not an effect of a machine whose load is falling."""
        return self.low > 1.0 and not self.is_wide

    @property
    def is_wide(self) -> bool:
        """Whether the interval is too wide to show either a gain or the lack of one."""
        return self.high >= SHARP * self.low


def faster(new: Sequence[float], base: Sequence[float]) -> Faster:
    """Compare the seconds per step of blocks with (`new`) and without (`base`)."""
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
    """Return the trimmed mean, its squared error and the degrees of freedom."""
    logs = sorted(math.log(max(duration, 1e-9)) for duration in seconds)
    cut = int(TRIMMED * len(logs))
    inner = logs[cut : len(logs) - cut]
    mean = sum(inner) / len(inner)
    pulled = [min(max(log, inner[0]), inner[-1]) for log in logs]  # winsorized
    centre = sum(pulled) / len(pulled)
    squares = sum((value - centre) ** 2 for value in pulled)
    free = max(1, len(inner) - 1)
    return mean, squares / (len(inner) * free), free


def _student(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t, within 2 % from 3 degrees of freedom on."""
    return 1.96 + 2.4 / freedom + 4.0 / freedom**2

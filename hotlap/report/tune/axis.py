"""The logarithmic axis shared by all intervals of a tune."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hotlap.report.tune.parts import Interval, TunePage

NARROWEST = 1.25  # the axis spans at least 1 / 1.25 to 1.25
WIDEST = 200.0  # an interval beyond this ends in an arrow
ROOM = 1.06  # factor of margin beyond the outermost end
MOST_TICKS = 7
FINE = (0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8)


@dataclass(frozen=True, slots=True)
class Axis:
    low: float
    high: float

    def at(self, ratio: float) -> float:
        """Return the position from 0 (left end) to 1 (right end), clamped to the axis."""
        inside = min(max(ratio, self.low), self.high)
        return math.log(inside / self.low) / math.log(self.high / self.low)

    def beyond(self, ratio: float) -> bool:
        return not self.low <= ratio <= self.high

    def ticks(self) -> tuple[float, ...]:
        """Return round numbers on the axis, always including 1."""
        fine = [tick for tick in FINE if self.low <= tick <= self.high]
        if self.high / self.low <= 2.0:
            return _thinned(fine)
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        coarse = [head * 10.0**power for power in decades for head in (1, 2, 5)]
        halves = [0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0]
        chosen = halves if self.high / self.low <= 8 else coarse
        return _thinned([tick for tick in chosen if self.low <= tick <= self.high])


def _thinned(ticks: list[float]) -> tuple[float, ...]:
    """Keep every second, third … tick, so that at most MOST_TICKS remain and 1 is among them."""
    every = -(-len(ticks) // MOST_TICKS)
    index_of_1 = next((i for i, tick in enumerate(ticks) if math.isclose(tick, 1.0)), 0)
    return tuple(tick for i, tick in enumerate(ticks) if (i - index_of_1) % every == 0)


def axis_of(page: TunePage) -> Axis:
    drawn = [page.noise, page.together, *(interval for row in page.rows for interval in (row.alone, row.stacked))]
    return axis([interval for interval in drawn if interval is not None], page.minimum)


def axis(intervals: Iterable[Interval], minimum: float) -> Axis:
    ends = [end for interval in intervals for end in (interval.low, interval.ratio, interval.high) if end is not None]
    usable = [end for end in (*ends, minimum) if math.isfinite(end) and end > 0]
    low = min([1 / NARROWEST, *(end / ROOM for end in usable)])
    high = max([NARROWEST, *(end * ROOM for end in usable)])
    return Axis(max(low, 1 / WIDEST), min(high, WIDEST))

"""Intervals on one logarithmic axis, one per row, drawn over the noise band."""

from __future__ import annotations

from hotlap.report.shared.figures import ratio
from hotlap.report.shared.svg import line, picture, square, strip, upright, words
from hotlap.report.tune.axis import Axis
from hotlap.report.tune.figures import spelled
from hotlap.report.tune.parts import Interval, TunePage

HEIGHT, MIDDLE = 48, 22
APART = 8  # pixels above and below the middle where a row has two intervals
EDGE = 0.03  # share of the width left free at both ends, for markers and tick labels


def scale(axis: Axis) -> str:
    """Draw the head of the column: the ticks with their numbers."""
    inside = "".join(
        line(_at(axis, tick), 20, _at(axis, tick), 28, "tick")
        + words(_at(axis, tick), 14, f"{tick:g}×", "tick-name", "middle")
        for tick in axis.ticks()
    )
    label = f"Logarithmic axis from {ratio(axis.low)} to {ratio(axis.high)} times as fast"
    return picture(28, label, inside, "forest")


def row(page: TunePage, axis: Axis, alone: Interval | None, stacked: Interval | None, strong: bool) -> str:
    """Draw one row; of two intervals, the one that decided is drawn above and filled."""
    both = alone is not None and stacked is not None
    decided = stacked or alone
    inside = _behind(page, axis)
    if decided is not None:
        inside += _interval(axis, decided, MIDDLE - APART if both else MIDDLE, "strong" if strong else "plain")
    if both and alone is not None:
        inside += _interval(axis, alone, MIDDLE + APART, "faint")
    return picture(HEIGHT, _label(alone, stacked), inside, "forest")


def _label(alone: Interval | None, stacked: Interval | None) -> str:
    labels = [
        f"{name} {spelled(interval)}"
        for name, interval in (("stacked", stacked), ("alone", alone))
        if interval is not None
    ]
    return "; ".join(labels) or "nothing was measured"


def _at(axis: Axis, value: float) -> float:
    return EDGE + (1 - 2 * EDGE) * axis.at(value)


def _behind(page: TunePage, axis: Axis) -> str:
    """Draw the noise band, the line of no change, and the smallest speed-up that counts."""
    band = ""
    if page.noise is not None and page.noise.low is not None and page.noise.high is not None:
        left, right = _at(axis, page.noise.low), _at(axis, page.noise.high)
        band = strip(left, right - left, "noise")
    least, none = _at(axis, page.minimum), _at(axis, 1.0)
    return band + upright(none, "nothing") + upright(least, "least")


def _interval(axis: Axis, interval: Interval, y: float, style: str) -> str:
    drawn = ""
    if interval.low is not None and interval.high is not None:
        drawn = line(_at(axis, interval.low), y, _at(axis, interval.high), y, f"interval {style}")
        drawn += "".join(_beyond(axis, end, y, style) for end in (interval.low, interval.high))
    return drawn + square(_at(axis, interval.ratio), y, 8 if style == "strong" else 7, f"point {style}")


def _beyond(axis: Axis, end: float, y: float, style: str) -> str:
    """Draw an arrowhead where the interval continues beyond the axis."""
    if not axis.beyond(end):
        return ""
    at = _at(axis, end)
    tip = at + (EDGE / 2 if end > 1 else -EDGE / 2)
    return line(at, y - 4, tip, y, f"interval {style}") + line(at, y + 4, tip, y, f"interval {style}")

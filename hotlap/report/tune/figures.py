"""Formats intervals of ratios."""

from __future__ import annotations

from hotlap.records.figures import NONE
from hotlap.report.shared.figures import ratio, times
from hotlap.report.tune.parts import Interval


def ends(interval: Interval) -> str:
    """Format the two ends of the interval; empty without an interval."""
    if interval.low is None or interval.high is None:
        return ""
    return f"{ratio(interval.low)}–{ratio(interval.high)}"


def spelled(interval: Interval | None) -> str:
    if interval is None:
        return NONE
    between = ends(interval)
    return f"{times(interval.ratio)} [{between}]" if between else f"{times(interval.ratio)} (no interval)"

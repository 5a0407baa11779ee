"""How ratios, intervals and durations are written, and text that was not written by us."""

from __future__ import annotations

import math

from hotlap.records.figures import NONE
from hotlap.records.visible import visible
from hotlap.report.tune_parts import Interval


def clean(text: str) -> str:
    """On one line, with what cannot be seen spelled out."""
    return visible(" ".join(text.split()))


def ratio(value: float) -> str:
    if not math.isfinite(value):
        return NONE
    if value >= 99.95:
        return f"{value:,.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.0995 else f"{value:.2g}"


def times(value: float) -> str:
    return f"{ratio(value)}×" if math.isfinite(value) else NONE


def ends(interval: Interval) -> str:
    """Its two ends, or nothing."""
    if interval.low is None or interval.high is None:
        return ""
    return f"{ratio(interval.low)}–{ratio(interval.high)}"


def spelled(interval: Interval | None) -> str:
    if interval is None:
        return NONE
    between = ends(interval)
    return f"{times(interval.ratio)} [{between}]" if between else f"{times(interval.ratio)} (no interval)"


def duration(seconds: float | None) -> str:
    """Two units at most: 850 ms, 12.3 s, 4 min 10 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return NONE
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    for large, big, small, little in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        pieces = round(seconds / small)
        if pieces * small >= large:
            whole, rest = divmod(pieces, large // small)
            return f"{whole:,} {big} {rest} {little}" if rest else f"{whole:,} {big}"
    return NONE


def plural(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"

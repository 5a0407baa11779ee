"""Formats numbers and ratios for readers, with no more digits than matter."""

from __future__ import annotations

import math

NONE = "–"


def number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return NONE if value is None else str(value)
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 0.995 or size == 0:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.0095 else f"{value:.2g}"


def times(ratio: float) -> str:
    if not math.isfinite(ratio):
        return NONE
    return f"{ratio:.0f}×" if ratio >= 9.95 else f"{ratio:.1f}×" if ratio >= 1.095 else f"{ratio:.2f}×"

"""Figures as a reader wants them: three digits that matter, never more."""

from __future__ import annotations

from collections.abc import Iterable


def number(value: float) -> str:
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 0.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.0095 or size == 0 else f"{value:.2g}"


def percent(share: float) -> str:
    whole = round(share * 100)
    return "under 1 %" if whole == 0 and share > 0 else f"{whole} %"


def times(ratio: float) -> str:
    return f"{ratio:.0f}×" if ratio >= 9.95 else f"{ratio:.1f}×" if ratio >= 1.095 else f"{ratio:.2f}×"


def part(cost: float, whole: float) -> str:
    return f"{number(cost)} of {number(whole)} ms"


def listed(words: Iterable[str]) -> str:
    items = list(words)
    return " and ".join(", ".join(items).rsplit(", ", 1)) if len(items) > 1 else "".join(items)

"""Puts figures into words."""

from __future__ import annotations

from collections.abc import Iterable

from hotlap.records.figures import number


def percent(share: float) -> str:
    whole = round(share * 100)
    return "under 1 %" if whole == 0 and share > 0 else f"{whole} %"


def part(cost: float, whole: float) -> str:
    return f"{number(cost)} of {number(whole)} ms"


def listed(words: Iterable[str]) -> str:
    items = list(words)
    return " and ".join(", ".join(items).rsplit(", ", 1)) if len(items) > 1 else "".join(items)

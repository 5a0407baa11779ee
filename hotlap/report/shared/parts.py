"""Tables and bars as plain data, independent of how they are rendered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    figures: bool = False  # right-aligned and never wrapped
    place: bool = False  # code, not prose
    minimum: int | None = None
    extra: bool = False  # dropped on a narrow terminal


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    marked: int | None = None  # the row to highlight


@dataclass(frozen=True, slots=True)
class Segment:
    """One phase in the bar of the step."""

    phase: str
    name: str
    ms: float
    share: float

    @property
    def percent(self) -> str:
        """Rounded as in the sentences about the phase, so those of one bar may add up to 99 or 101."""
        return f"{round(100 * self.share) or '<1'} %"


@dataclass(frozen=True, slots=True)
class Bars:
    """A step before and after, in milliseconds."""

    before_ms: float | None
    after_ms: float | None
    after_low: float | None
    after_high: float | None
    segments: tuple[Segment, ...]  # of the step before
    note: str  # where the figures come from, or why some are missing

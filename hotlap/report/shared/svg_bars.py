"""A step as bars: before, divided into its phases, and after; with the list of its phases."""

from __future__ import annotations

from hotlap.records.figures import number
from hotlap.report.shared.html import text
from hotlap.report.shared.html_style import PARTS
from hotlap.report.shared.parts import Bars, Segment
from hotlap.report.shared.svg import across, box, picture

HEIGHT = 40
NAMED, NUMBERED = 0.17, 0.035  # share of the width: a narrower segment shows only its number, or nothing


def phases(segments: tuple[Segment, ...], share: float = 1.0) -> str:
    """Draw the phases of one step, numbered as in the list beside it."""
    pieces, at = [], 0.0
    for i, segment in enumerate(segments):
        width = segment.share * share
        pieces.append(_segment(i, segment, at, width))
        at += width
    return picture(HEIGHT, _label(segments), "".join(pieces), "bar")


def _label(segments: tuple[Segment, ...]) -> str:
    return "A step: " + ", ".join(f"{segment.name} {number(segment.ms)} ms ({segment.percent})" for segment in segments)


def _segment(i: int, segment: Segment, at: float, width: float) -> str:
    label = f"{i + 1} {segment.name}" if width >= NAMED else str(i + 1) if width >= NUMBERED else ""
    inside = f'<text class="seg-name" x="8" y="{HEIGHT / 2 + 4:g}">{text(label)}</text>' if label else ""
    tip = f"<title>{text(segment.name)}: {number(segment.ms)} ms, {text(segment.percent)}</title>"
    return (
        f'<svg x="{across(at)}" width="{across(width)}" height="{HEIGHT}">{tip}'
        f'<rect class="seg {colour(segment)}" width="100%" height="100%"/>{inside}</svg>'
    )


def colour(segment: Segment) -> str:
    return segment.phase if segment.phase in PARTS else "span"


def before(bars: Bars, longest: float) -> str:
    share = (bars.before_ms or 0.0) / longest
    if bars.segments:
        return phases(bars.segments, share)
    return picture(HEIGHT, f"Before: {number(bars.before_ms)} ms", box(0, 0, share, HEIGHT, "seg rest"), "bar")


def after(bars: Bars, longest: float) -> str:
    label = f"After: {number(bars.after_ms)} ms"
    return picture(HEIGHT, label, box(0, 0, (bars.after_ms or 0.0) / longest, HEIGHT, "after"), "bar")


def longest(bars: Bars) -> float:
    return max(filter(None, (bars.before_ms, bars.after_ms)), default=1.0)


def phase_list(segments: tuple[Segment, ...]) -> str:
    """List the phases of a step with their numbers in the bar."""
    inside = "".join(
        f'<li><span class="key {colour(segment)}">{i + 1}</span><span>{text(segment.name)}</span>'
        f'<span>{number(segment.ms)} ms</span><span class="share">{text(segment.percent)}</span></li>'
        for i, segment in enumerate(segments)
    )
    return f'<ul class="phases" aria-label="Phases of a step">{inside}</ul>' if inside else ""

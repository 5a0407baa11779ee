"""SVG pictures of lines, boxes and words. Horizontal positions are percentages, so a picture fits any screen."""

from __future__ import annotations

from hotlap.report.shared.html import text


def picture(height: int, label: str, inside: str, style: str = "") -> str:
    """Return a picture as wide as its container; `label` describes it to screen readers."""
    named = f' class="{style}"' if style else ""
    return (
        f'<svg{named} role="img" aria-label="{text(label)}" width="100%" height="{height}" focusable="false">'
        f"<title>{text(label)}</title>{inside}</svg>"
    )


def across(share: float) -> str:
    """Format a horizontal position between the left end (0) and the right end (1)."""
    return f"{_short(100 * share)}%"


def upright(x: float, style: str) -> str:
    """Return a vertical line over the full height of the picture."""
    return f'<line class="{style}" x1="{across(x)}" y1="0" x2="{across(x)}" y2="100%"/>'


def strip(x: float, width: float, style: str) -> str:
    return f'<rect class="{style}" x="{across(x)}" y="0" width="{across(max(width, 0.0))}" height="100%"/>'


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{across(x1)}" y1="{_short(y1)}" x2="{across(x2)}" y2="{_short(y2)}"/>'


def box(x: float, y: float, width: float, height: float, style: str) -> str:
    return (
        f'<rect class="{style}" x="{across(x)}" y="{_short(y)}" width="{across(max(width, 0.0))}" '
        f'height="{_short(height)}"/>'
    )


def square(x: float, y: float, size: float, style: str) -> str:
    """Return a square centred at a relative x, with its size in pixels."""
    half = _short(size / 2)
    return (
        f'<rect class="{style}" x="{across(x)}" y="{_short(y - size / 2)}" width="{_short(size)}" '
        f'height="{_short(size)}" transform="translate(-{half} 0)"/>'
    )


def words(x: float, y: float, content: str, style: str, anchor: str = "start") -> str:
    return f'<text class="{style}" x="{across(x)}" y="{_short(y)}" text-anchor="{anchor}">{text(content)}</text>'


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")

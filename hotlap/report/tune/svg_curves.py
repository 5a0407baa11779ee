"""The loss curves of both arms, over the noise band of the baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hotlap.report.shared.svg import line, picture, words
from hotlap.report.tune.parts import Losses

HEIGHT, TOP, FOOT = 280, 12, 28
LEFT = 0.001  # share of the width
GRID = 6  # approximate number of grid lines
WIDE = 1000  # width of the stretched inner picture, in its own units
LOG_FROM = 20.0  # the axis is logarithmic when the highest loss exceeds the lowest by this factor

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Scale:
    low: float
    high: float
    log: bool

    def at(self, value: float) -> float:
        """Return the vertical position in pixels from the top."""
        low, high, here = (math.log(point) if self.log else point for point in (self.low, self.high, value))
        return TOP + (HEIGHT - TOP - FOOT) * (1 - (here - low) / (high - low))

    def marks(self) -> list[float]:
        """Return round numbers between the ends of the axis."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            heads = (1, 2, 5) if self.high / self.low < 1000 else (1,)
            found = [head * 10.0**power for power in powers for head in heads]
        else:
            unit = _round_up((self.high - self.low) / GRID)
            first = math.ceil(self.low / unit)
            found = [unit * i for i in range(first, math.floor(self.high / unit) + 1)]
        return [mark for mark in found if self.low <= mark <= self.high]


def _round_up(value: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(head * power for head in (1, 2, 5, 10) if head * power >= value * 0.999)


def curves(losses: Losses) -> str:
    scale = _scale(losses)
    if scale is None:
        return ""
    inside = _grid(scale, losses) + _stretched(scale, losses)
    return picture(HEIGHT, _label(losses, scale), inside, "curves")


def _scale(losses: Losses) -> Scale | None:
    drawn = [
        value for values in (losses.low, losses.high, *(curve.values for curve in losses.curves)) for value in values
    ]
    known = [value for value in drawn if value is not None]
    if not known:
        return None
    low, high = min(known), max(known)
    log = low > 0 and high / low > LOG_FROM
    room = 0.0 if log else (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return Scale(low / 1.1, high * 1.1, True) if log else Scale(low - room, high + room, False)


def is_logarithmic(losses: Losses) -> bool:
    scale = _scale(losses)
    return scale is not None and scale.log


def _label(losses: Losses, scale: Scale) -> str:
    ends = ", ".join(f"{curve.name} {_ends(curve.values)}" for curve in losses.curves)
    return f"Loss over steps 1 to {losses.last + 1:,}: {ends}{', logarithmic' if scale.log else ''}"


def _ends(values: Values) -> str:
    known = [value for value in values if value is not None]
    return f"from {known[0]:.3g} to {known[-1]:.3g}" if known else "not finite"


def _grid(scale: Scale, losses: Losses) -> str:
    marks = "".join(
        line(0, scale.at(mark), 1, scale.at(mark), "grid") + words(LEFT, scale.at(mark) - 4, f"{mark:.3g}", "tick-name")
        for mark in scale.marks()
    )
    half = losses.last // 2 + 1
    steps = ((0.0, "step 1", "start"), (0.5, f"{half:,}", "middle"), (1.0, f"{losses.last + 1:,}", "end"))
    return marks + "".join(words(x, HEIGHT - 8, step, "tick-name", anchor) for x, step, anchor in steps)


def _stretched(scale: Scale, losses: Losses) -> str:
    """Draw the curves; the style sheet keeps their line width although the picture is stretched."""
    paths = _area(scale, losses)
    for i, curve in enumerate(losses.curves):
        paths += f'<path class="curve-{i}" d="{_path(scale, curve.values)}"/>'
    return f'<svg viewBox="0 0 {WIDE} {HEIGHT}" width="100%" height="{HEIGHT}" preserveAspectRatio="none">{paths}</svg>'


def _x(i: int, count: int) -> float:
    return WIDE * i / max(count - 1, 1)


def _path(scale: Scale, values: Values) -> str:
    """Return a path with gaps where values are missing; an isolated value is a short stroke."""
    drawn, pen = "", "M"
    for i, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        drawn += f"{pen}{_x(i, len(values)):.1f} {scale.at(value):.1f}"
        drawn += "h1" if pen == "M" and (i + 1 == len(values) or values[i + 1] is None) else ""
        pen = "L"
    return drawn


def _area(scale: Scale, losses: Losses) -> str:
    count = len(losses.steps)
    band = [
        (i, low, high) for i, (low, high) in enumerate(zip(losses.low, losses.high, strict=True)) if low is not None
    ]
    whole = [(i, low, high) for i, low, high in band if high is not None]
    if len(whole) < 2:
        return ""
    upper = [f"{_x(i, count):.1f} {scale.at(high):.1f}" for i, _, high in whole]
    lower = [f"{_x(i, count):.1f} {scale.at(low):.1f}" for i, low, _ in reversed(whole)]
    return f'<path class="band" d="M{"L".join((*upper, *lower))}Z"/>'

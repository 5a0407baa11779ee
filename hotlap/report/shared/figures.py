"""Formats figures, shares, durations and paths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hotlap.records.figures import NONE
from hotlap.records.observation import PHASES
from hotlap.records.visible import visible

SHOWN = 5e-5  # share of the window; anything smaller is a rounding artefact at its edge, not a phase


def percent(share: float) -> str:
    return f"{share * 100:.0f} %" if math.isfinite(share) else NONE


def megabytes(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value / 1000:.1f} GB" if value >= 1000 else f"{value:.0f} MB"


def count(value: int) -> str:
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return str(value)


def quantile(values: Sequence[float], fraction: float) -> float | None:
    """Return the quantile, interpolated linearly between neighbours; None if no value is finite."""
    ordered = sorted(value for value in values if math.isfinite(value))
    if not ordered:
        return None
    position = fraction * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def parts_of(total: int, weights: Sequence[float]) -> list[int]:
    """Split the total into whole numbers in proportion to the weights, rounding up the largest remainders."""
    whole = sum(weights)
    if whole <= 0:
        return [0] * len(weights)
    exact = [weight * total / whole for weight in weights]
    parts = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def ordered_shares(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the phases in the order of a step, then the user's spans, without those below SHOWN."""
    names = [name for name in PHASES if name in shares] + sorted(name for name in shares if name not in PHASES)
    return [(name, shares[name]) for name in names if math.isfinite(shares[name]) and shares[name] >= SHOWN]


def short_path(file: str, directory: str) -> str:
    """Return the path relative to where the command ran; for a library, relative to site-packages."""
    path, root = file.replace("\\", "/"), directory.replace("\\", "/").rstrip("/") + "/"
    if len(root) > 1 and path.startswith(root):
        path = path[len(root) :]
    for marker in ("site-packages/", "dist-packages/"):
        path = path.rpartition(marker)[2]
    return path


def clean(text: str) -> str:
    """Return the text on one line, with invisible characters escaped."""
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


def duration(seconds: float | None) -> str:
    """Format with at most two units: 850 ms, 12.3 s, 4 min 10 s, 2 h 5 min, 3 d 4 h."""
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


def plural(number: int, singular: str, many: str | None = None) -> str:
    return f"{number:,} {singular if number == 1 else many or singular + 's'}"

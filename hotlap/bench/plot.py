"""The picture of a bench: how many times as fast as naive each arm is, with its interval, on a log axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotlap.bench.record import Bench, Row
from hotlap.bench.table import digits
from hotlap.errors import PackageMissing

# Greys and hatches, which can be told apart in black and white.
STYLES = (("0.95", "///"), ("0.8", ""), ("0.6", ""), ("0.95", "..."), ("0.8", "xxx"), ("0.95", ""))
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
BAR = 0.8  # share of its row that a bar fills
FORMATS = ("png", "svg")


def draw(bench: Bench, beside: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the picture beside the result, once per format; nothing without a ratio to show."""
    rows = [row for row in bench.summary if row.ratio is not None]
    if not rows:
        return []
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 1.4 + 0.32 * len(rows) + 0.25 * len({row.workload for row in rows})), dpi=150)
    _bars(figure.subplots(), rows, bench)
    written = []
    # A fixed salt and no date make the file reproducible.
    with matplotlib.rc_context({"svg.hashsalt": "hotlap", "svg.fonttype": "none"}):
        for kind in formats:
            path = beside.with_suffix(f".{kind}")
            metadata = {"Date": None} if kind == "svg" else {}
            figure.savefig(path, format=kind, metadata=metadata, bbox_inches="tight")
            written.append(path)
    return written


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise PackageMissing("no plot was drawn: matplotlib is missing; type: pip install 'hotlap[bench]'") from error
    return matplotlib


def _bars(axes: Any, rows: list[Row], bench: Bench) -> None:
    arms = list(dict.fromkeys(row.arm for row in rows))
    styles = {arm: STYLES[index % len(STYLES)] for index, arm in enumerate(arms)}
    places, groups = _places(rows)
    for row, place in zip(rows, places, strict=True):
        _bar(axes, row, place, styles[row.arm])
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks(list(groups.values()), list(groups))
    axes.invert_yaxis()
    axes.set_xscale("log")
    _limits(axes, rows)
    axes.set_xlabel("samples/s against naive (= 1), 95 % intervals, log scale")
    where = bench.machine.gpu or f"{bench.machine.cores} cores of {bench.machine.cpu}"
    axes.set_title(f"{where}, size {bench.choice.size}, torch {bench.versions.get('torch', '?')}", fontsize=10)
    handles = {arm: axes.barh(0, 0, left=1.0, color=color, hatch=hatch, edgecolor="black")
               for arm, (color, hatch) in styles.items()}  # fmt: skip
    axes.legend(handles.values(), handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _bar(axes: Any, row: Row, place: float, style: tuple[str, str]) -> None:
    ratio = row.ratio
    assert ratio is not None  # rows without a ratio are not drawn
    color, hatch = style
    axes.barh(place, ratio.value - 1.0, BAR, left=1.0, color=color, hatch=hatch, edgecolor="black", linewidth=0.6)
    end = max(1.0, ratio.value)
    if ratio.low is not None and ratio.high is not None:
        reach = [[ratio.value - ratio.low], [ratio.high - ratio.value]]
        axes.errorbar(ratio.value, place, xerr=reach, color="black", capsize=3, linewidth=1)
        end = max(end, ratio.high)
    axes.annotate(f"{digits(ratio.value)}×", (end, place), (6, 0), textcoords="offset points", va="center", fontsize=8)


def _places(rows: list[Row]) -> tuple[list[float], dict[str, float]]:
    """Return the position of each bar, and the middle of each workload's group."""
    places: list[float] = []
    for index, row in enumerate(rows):
        gap = 0.0 if index == 0 else 1.0 if rows[index - 1].workload == row.workload else 1.8
        places.append((places[-1] if places else 0.0) + gap)
    groups: dict[str, list[float]] = {}
    for row, place in zip(rows, places, strict=True):
        groups.setdefault(row.workload, []).append(place)
    return places, {name: sum(group) / len(group) for name, group in groups.items()}


def _limits(axes: Any, rows: list[Row]) -> None:
    ends = [end for row in rows if row.ratio for end in (row.ratio.value, row.ratio.low, row.ratio.high) if end]
    low, high = min(0.8, *(0.9 * end for end in ends)), max(1.5, *(1.6 * end for end in ends))
    shown = [tick for tick in TICKS if low <= tick <= high]
    axes.set_xticks(shown, [f"{tick:g}" for tick in shown])
    axes.set_xticks([], minor=True)
    axes.set_xlim(low, high)

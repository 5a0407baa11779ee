"""Recurrent layers against cuDNN in benchmarks/README.md: means by kind and size, and every shape in one picture."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

RESULTS = "*/*-recurrent-grid.json"  # what single kernels take is in docs/engine-recurrent.md
FORMATS = ("svg",)
TICKS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 50, 100)
HEAD = """## Recurrent layers against cuDNN

`hotlap.engine.nn`'s LSTM and GRU against `torch.nn`'s, forward and backward, by turns in one process (`python
benchmarks/recurrent/recurrent.py`). The targets: 3 times as fast in the geometric mean of the grid, 2.5 times at the
reports' shapes, none slower, an error against float64 no larger than cuDNN's, at most 1.2 times its memory.
"""
GROUPS = (
    ("all that were measured", ("all",)),
    ("weighted as in the whole grid", ("grid",)),
    ("of the reports", ("reports",)),
    ("kind", ("kind lstm", "kind gru")),
    ("batch", ("batch 32", "batch 200", "batch 512", "batch 2048", "batch 8192")),
    ("steps", ("steps 50", "steps 150", "steps 400")),
    ("hidden units", ("hidden 10", "hidden 16", "hidden 64", "hidden 128", "hidden 256")),
    ("layers", ("layers 1", "layers 2", "layers 3")),
    ("features", ("features 3", "features 8", "features 64")),
)


def section(folder: Path) -> list[str]:
    """Empty where there are no results."""
    paths = _paths(folder)
    return [HEAD, *(_result(path, folder) for path in paths)] if paths else []


def _paths(folder: Path) -> list[Path]:
    return sorted((folder / "results").glob(RESULTS), key=lambda path: (path.parent.name, path.name))


def _result(path: Path, folder: Path) -> str:
    found = json.loads(path.read_text(encoding="utf-8"))
    about, summary = found["about"], found["summary"]
    place = path.relative_to(folder).as_posix()
    lines = [
        f"### {summary['shapes']} shapes on {about['gpu'] or about['machine']}\n",
        *(f"- {call['date'][:19]}+00:00, `python {call['command']}`" for call in about["calls"]),
        f"- python {about['python']}, torch {about['torch']}, cuDNN {about['cudnn']}\n",
        f"![Times as fast as cuDNN]({Path(place).with_suffix('.svg').as_posix()})\n",
        "| shapes | times as fast, geometric mean |",
        "| --- | --- |",
        *(f"| {name} | {_means(summary['geometric_mean_speedup'], keys)} |" for name, keys in GROUPS),
        "",
        *(f"- {fact}" for fact in _facts(found)),
        f"\nRaw: [{path.name}]({place})\n",
    ]
    return "\n".join(line for line in lines if not line.endswith("|  |"))


def _means(means: dict[str, float | None], keys: tuple[str, ...]) -> str:
    known = [(key.split()[-1], value) for key in keys if (value := means.get(key)) is not None]
    if len(keys) == 1:
        return "".join(f"{value:.2f}" for _, value in known)
    return ", ".join(f"{name}: {value:.2f}" for name, value in known)


def _facts(found: dict[str, Any]) -> list[str]:
    summary, failed = found["summary"], found["failed"]
    points = [point for point in found["points"] if point["variant"] != "cudnn"]
    speeds = sorted((point["speedup"], point["name"]) for point in points)
    memory = [point["bytes"]["ours"] / max(1, point["bytes"]["cudnn"]) for point in points]
    errors = [point["error"]["ours"] / max(1e-30, point["error"]["cudnn"]) for point in points]
    above = sum(point > 1 for point in errors)
    return [
        f"Left to cuDNN, which is faster there: {summary['by_cudnn']} of {summary['shapes']}. For the others:",
        f"Median {statistics.median(point for point, _ in speeds):.2f}.",
        f"Least: {speeds[0][0]:.2f} ({speeds[0][1]}); most: {speeds[-1][0]:.3g} ({speeds[-1][1]}); "
        f"slower than cuDNN by more than 3 %: {len(summary['slower_than_cudnn'])}.",
        f"Peak memory relative to cuDNN's: {min(memory):.2f} to {max(memory):.2f}, "
        f"median {statistics.median(memory):.2f}; "
        f"above 1.2: {len(summary['memory_above_1.2'])}.",
        f"Error against float64 relative to cuDNN's: median {statistics.median(errors):.2f}, "
        f"at most {max(errors):.3g}; "
        f"above it: {above}, by more than 5 %: {len(summary['error_above_cudnn'])}.",
        *(f"Not measured: {', '.join(names)}, {why}." for why, names in _by_reason(failed).items()),
    ]


def _by_reason(failed: dict[str, str]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for name, why in failed.items():
        reasons.setdefault(why, []).append(name)
    return reasons


def draw_missing(folder: Path) -> None:
    for path in _paths(folder):
        if not all(path.with_suffix(f".{kind}").exists() for kind in FORMATS):
            _draw(path)


def _series(point: dict[str, Any]) -> str:
    return "left to cuDNN" if point["variant"] == "cudnn" else str(point["point"]["kind"]).upper()


def _draw(path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    points = json.loads(path.read_text(encoding="utf-8"))["points"]
    figure = Figure(figsize=(8.0, 4.0), dpi=150)
    axes = figure.subplots()
    for name, mark, shade in (("LSTM", "o", "0.25"), ("GRU", "x", "0.55"), ("left to cuDNN", "+", "0.8")):
        chosen = [point for point in points if name == _series(point)]
        took = [statistics.median(point["ms"]["cudnn"]) for point in chosen]
        axes.scatter(took, [point["speedup"] for point in chosen], s=14, marker=mark, color=shade, label=name)
    axes.axhline(1.0, color="0", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="cuDNN, ms forward + backward", ylabel="times as fast as cuDNN")
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        ticks = [point for point in TICKS if low <= point <= high]
        axis.set_ticks(ticks, labels=[f"{point:g}" for point in ticks])
        axis.set_ticks([], minor=True)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    axes.legend(frameon=False)
    with matplotlib.rc_context({"svg.hashsalt": "hotlap", "svg.fonttype": "none"}):
        for kind in FORMATS:
            metadata = {"Date": None} if kind == "svg" else {}
            figure.savefig(path.with_suffix(f".{kind}"), format=kind, metadata=metadata, bbox_inches="tight")

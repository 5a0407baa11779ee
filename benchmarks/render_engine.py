"""The tables about the engine in benchmarks/README.md: data ready to train on, and files judged in one pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HEAD = """## What the engine does besides the steps
"""
TEXTS = {
    "engine-start": """### Data ready to train on

The load of the Bloom workload by `naive.py`, and by `fast.py` from a warm cache (`python benchmarks/engine_start.py`):
processes of their own, by turns, imports not counted. *cold* is `fast.py` with an empty cache.
""",
    "engine-files": """### Files judged in one pass

The file-level evaluation of the leak workload, one file at a time as in `naive.py`, and all together as in `fast.py`
(`python benchmarks/engine_files.py`): both by turns in each of several processes. Ten times is asked of a GPU.
""",
}
HEADINGS = ("machine", "size", "date", "torch", "naive", "engine", "times faster [95 %]", "asked", "results", "raw")


def section(folder: Path) -> list[str]:
    """Empty where there are no results."""
    parts = []
    for kind, text in TEXTS.items():
        paths = sorted((folder / "results").glob(f"*/*-{kind}*.json"), key=lambda path: (path.parent.name, path.name))
        if paths:
            lines = [HEADINGS, ("---",) * len(HEADINGS), *(_row(path, folder) for path in paths)]
            parts += [text, "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"]
    return [HEAD, *parts] if parts else []


def _row(path: Path, folder: Path) -> tuple[str, ...]:
    found = json.loads(path.read_text(encoding="utf-8"))
    machine, summary = found["machine"], found["summary"]
    cold = f" (cold {_seconds(found['cold']['seconds'][0])})" if "cold" in found else ""
    rounds = {one["round"] for one in found["samples"]}
    return (
        machine["gpu"] or f"{machine['cores']} cores of {machine['cpu']}",
        f"{found['size']}, {len(rounds)} rounds",
        found["date"],
        machine["torch"],
        _seconds(summary["seconds"]["naive"]),
        _seconds(summary["seconds"]["engine"]) + cold,
        _times(summary["times_faster"]),
        f"{found['asked_times_faster']:g}",
        "the same" if summary["results_alike"] else "**differ**",
        f"[{path.name}]({path.relative_to(folder).as_posix()})",
    )


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _times(faster: dict[str, Any]) -> str:
    span = "" if faster["low"] is None else f" [{faster['low']:.3g}, {faster['high']:.3g}]"
    return f"{faster['value']:.3g}{span}"

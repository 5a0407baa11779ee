"""The table of whole tunes in benchmarks/README.md, from the reports saved beside their raw records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HEAD = """## Whole tunes

`hotlap tune` of unmodified scripts. The JSON beside each report holds every raw sample, loss and verdict.
"""
HEADINGS = ("script", "machine", "date", "verdict", "kept", "tried", "processes", "time of budget", "report", "raw")


def section(folder: Path) -> list[str]:
    """Empty where there are no results."""
    found = sorted((folder / "results").glob("*/tunes/*.json"), key=lambda path: (path.parent, path.name))
    if not found:
        return []
    remarks = sorted((folder / "results").glob("*/tunes/*.remark.md"))
    lines = [HEADINGS, ("---",) * len(HEADINGS), *(_row(path, folder) for path in found)]
    said = [f"{path.read_text(encoding='utf-8').strip()}\n" for path in remarks]
    return [HEAD, *said, "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"]


def _row(path: Path, folder: Path) -> tuple[str, ...]:
    tuning = json.loads(path.read_text(encoding="utf-8"))["tuning"]
    request = tuning["asked"]
    minutes = f"{tuning['seconds'] / 60:.1f} of {request['budget_seconds'] / 60:.1f} min"
    tried = {item["entry"] for item in tuning["verdicts"] if item["entry"]}
    return (
        f"`{' '.join(request['command'])}`",
        tuning["machine"],
        tuning["started"][:10],
        _verdict(tuning),
        ", ".join(item["name"] for item in tuning["kept"]) or "nothing",
        str(len(tried)),
        str(sum(len(trial["samples"]) for trial in tuning["trials"])),
        minutes,
        f"[page]({_beside(path, folder, '.html')}), [text]({_beside(path, folder, '.md')})",
        f"[{path.name}]({_beside(path, folder, '.json')})",
    )


def _verdict(tuning: dict[str, Any]) -> str:
    if tuning["speedup"] is None or tuning["speedup"]["speed"] is None:
        return "nothing proven"
    speed = tuning["speedup"]["speed"]
    return f"{speed['ratio']:.2f} × [{speed['low']:.2f}, {speed['high']:.2f}]"


def _beside(path: Path, folder: Path, suffix: str) -> str:
    return path.with_suffix(suffix).relative_to(folder).as_posix()

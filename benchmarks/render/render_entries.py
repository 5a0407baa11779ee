"""The table about single optimisations in benchmarks/README.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HEAD = """## Each optimisation alone

Every entry of the plan `fast` that applies to a workload, against the naive script without it (`python
benchmarks/training/entries.py`), in fresh processes by turns, with steps timed as in `hotlap tune`. *noise* is the
naive script against itself; **bold** means that the whole 95 % interval is below 1.
"""


def section(folder: Path) -> list[str]:
    """Empty where there are no results."""
    paths = sorted((folder / "results").glob("*/*-entries*.json"))
    return [HEAD, *(_table(path, folder) for path in paths)] if paths else []


def _table(path: Path, folder: Path) -> str:
    found = json.loads(path.read_text(encoding="utf-8"))
    workloads: dict[str, Any] = found["workloads"]
    arms = list(dict.fromkeys(arm for workload in workloads.values() for arm in workload["ratios"]))
    arms.append(arms.pop(arms.index("all together")))
    lines = [("", *workloads), ("---",) * (len(workloads) + 1)]
    lines += [(arm, *(_times(workload["ratios"].get(arm)) for workload in workloads.values())) for arm in arms]
    about = (
        f"{found['cores']} cores of {found['machine']}, size {found['size']}, torch {found['torch']}, {found['made']}"
    )
    rows = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{about}, raw: [{path.name}]({path.relative_to(folder).as_posix()})\n\n{rows}\n"


def _times(ratio: dict[str, Any] | None) -> str:
    if ratio is None:
        return "–"
    text = f"{ratio['value']:.3g} [{ratio['low']:.3g}, {ratio['high']:.3g}]"
    return f"**{text}**" if ratio["high"] < 1 else text

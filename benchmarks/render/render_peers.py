"""The table of the frameworks' settings in benchmarks/README.md: which of them the bench takes, and why."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

TEXT = """## Settings of the frameworks

Lightning and Accelerate in each precision, and with and without `torch.compile`, every combination in a fresh process
(`python benchmarks/training/peer_settings.py`): samples per second of the median epoch after the first.
`workloads/peer.py` uses the fastest setting of each workload, over both frameworks together where both were tried.
"""
HEADINGS = ("machine", "workload", "framework", "fp32 (TF32)", "fp32, compiled", "bf16", "bf16, compiled", "raw")
COLUMNS = (("32", False), ("32", True), ("bf16", False), ("bf16", True))


def section(folder: Path) -> list[str]:
    """Empty where there are no results."""
    paths = sorted((folder / "results").glob("*/*-peer-settings*.json"))
    lines = [line for path in paths for line in _rows(path, folder)]
    if not lines:
        return []
    table = [HEADINGS, ("---",) * len(HEADINGS), *sorted(lines, key=lambda line: line[:3])]
    remarks = [path.read_text(encoding="utf-8") for path in (folder / "results").glob("*/*-peer-settings.remark.md")]
    return [TEXT, "\n".join("| " + " | ".join(line) + " |" for line in table) + "\n", *remarks]


def _rows(path: Path, folder: Path) -> list[tuple[str, ...]]:
    found = json.loads(path.read_text(encoding="utf-8"))
    tried: dict[tuple[str, str], dict[tuple[str, bool], str]] = {}
    for result in found["results"]:
        combination = result["combination"]
        key = (f"{combination['workload']}, {found['size']}", combination["framework"])
        tried.setdefault(key, {})[combination["precision"], combination["compile"]] = _speed(result)
    machine = found["machine"]["gpu"] or f"{found['machine']['cores']} cores of {found['machine']['processor']}"
    link = f"[{path.name}]({path.relative_to(folder).as_posix()})"
    return [
        (machine, *key, *(speeds.get(combination, "") for combination in COLUMNS), link)
        for key, speeds in tried.items()
        if any(speed[0].isdigit() for speed in speeds.values())  # where all failed, the raw file says why
    ]


def _speed(result: dict[str, Any]) -> str:
    seconds = result["epoch_seconds"][1:] or result["epoch_seconds"]
    if seconds:
        return f"{result['samples'] / statistics.median(seconds):,.0f}"
    return f"({result['error'].partition(';')[0].partition(':')[0]})"

"""What every arm learned with every seed, in benchmarks/README.md: from all benches and quality.py."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hotlap.bench import contract, record
from hotlap.bench.record import TRAINED, Run
from hotlap.bench.workloads import ARMS

RESULTS = ("*/*-bench*.json", "*/*-quality*.json")
HEAD = """## Does every arm learn as well?

The quality at the end of every training above, seed by seed, and of trainings that ran side by side for this alone
(`python benchmarks/training/quality.py`). *missed* after a figure means that the target was not reached. If a seed was
trained more than once, the last result counts.
"""


class Cell(NamedTuple):
    """One training."""

    size: str
    workload: str
    arm: str
    seed: int


def section(folder: Path) -> list[str]:
    """Empty where there are no results."""
    machines: dict[str, dict[Cell, contract.RunReport]] = {}
    paths = sorted((path for pattern in RESULTS for path in (folder / "results").glob(pattern)), key=_date)
    for path in paths:
        bench = record.load(path)
        where = bench.machine.gpu or f"{bench.machine.cores} cores of {bench.machine.cpu}"
        found = {Cell(bench.choice.size, *run.key): contract.read(run.lines) for run in _trained(bench.runs)}
        machines.setdefault(where, {}).update(found)
    raw = [f"[{path.name}]({path.relative_to(folder).as_posix()})" for path in paths if "-quality" in path.name]
    tables = [_table(where, machines[where]) for where in sorted(machines)]
    return [HEAD, *tables, f"Raw, in addition to the benches above: {', '.join(raw)}\n"] if paths else []


def _date(path: Path) -> str:
    return record.load(path).date


def _trained(runs: tuple[Run, ...]) -> list[Run]:
    return [run for run in runs if run.ended == TRAINED]


def _table(where: str, found: dict[Cell, contract.RunReport]) -> str:
    arms = [arm for arm in ARMS if any(cell.arm == arm for cell in found)]
    lines = [("size", "workload", "target", *arms), ("---",) * (3 + len(arms))]
    for size, workload in sorted({cell[:2] for cell in found}):
        rows = {cell: report for cell, report in found.items() if cell[:2] == (size, workload)}
        any_of = next(iter(rows.values()))
        cells = [
            ", ".join(_text(rows[cell]) for cell in sorted(rows) if cell.arm == arm) or "–" for arm in arms
        ]  # fmt: skip
        lines.append((size, workload, f"{any_of.metric} {any_of.target:g}", *cells))
    return f"### {where}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _text(report: contract.RunReport) -> str:
    return f"{report.final:.4f}" + ("" if report.reached else " *missed*")

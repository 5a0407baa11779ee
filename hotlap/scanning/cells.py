"""Findings in notebooks, located by cell. They are never repaired: only its editor should write a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hotlap.analysis.parse import files, notebooks
from hotlap.analysis.parse.files import Source
from hotlap.records.scan_finding import Applicability, ScanFinding, Step


def in_cells(findings: Iterable[ScanFinding]) -> list[ScanFinding]:
    cells: dict[str, list[int]] = {}
    return [_in_cell(finding, cells) for finding in findings]


def _in_cell(finding: ScanFinding, cells: dict[str, list[int]]) -> ScanFinding:
    why = tuple(_step_in_cell(step, cells) for step in finding.why)
    if not finding.path.endswith(notebooks.SUFFIX):
        return finding if why == finding.why else replace(finding, why=why)
    number, line = notebooks.cell_at(_cells(finding.path, cells), finding.line)
    return replace(
        finding, line=line, end_line=finding.end_line - finding.line + line, cell=number, why=why,
        applicability=Applicability.DISPLAY_ONLY,
    )  # fmt: skip


def _step_in_cell(step: Step, cells: dict[str, list[int]]) -> Step:
    if not step.path.endswith(notebooks.SUFFIX):
        return step
    number, line = notebooks.cell_at(_cells(step.path, cells), step.line)
    return Step(f"{step.path}:cell {number}", line, step.text)


def _cells(path: str, cells: dict[str, list[int]]) -> list[int]:
    if path not in cells:
        text = files.load(Source(path, "", False))
        cells[path] = notebooks.starts(text) if isinstance(text, str) else []
    return cells[path]

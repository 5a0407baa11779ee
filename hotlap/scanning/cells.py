"""Findings in notebooks, located by cell. They are never repaired: only its editor should write a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hotlap.analysis.parse import files, notebooks
from hotlap.analysis.parse.files import Source
from hotlap.records.scan_finding import Applicability, ScanFinding, Step


def in_cells(findings: Iterable[ScanFinding]) -> list[ScanFinding]:
    books: dict[str, _Notebook] = {}
    return [_in_cell(finding, books) for finding in findings]


class _Notebook:
    """Where the cells of a notebook begin in the program that was scanned, and where their lines are in its file."""

    def __init__(self, path: str) -> None:
        text = files.load(Source(path, "", False))
        self.starts = notebooks.starts(text) if isinstance(text, str) else []
        self.lines = notebooks.file_lines(Path(path).read_bytes()) if self.starts else []

    def place(self, line: int) -> tuple[int, int, int]:
        """Return the cell, the line in it, and the line of the file, which is 1 if it cannot be told."""
        cell, within = notebooks.cell_at(self.starts, line)
        lines = self.lines[cell - 1] if 0 < cell <= len(self.lines) else []
        return cell, within, lines[within - 1] if 0 < within <= len(lines) else 1


def _in_cell(finding: ScanFinding, books: dict[str, _Notebook]) -> ScanFinding:
    why = tuple(_step_in_cell(step, books) for step in finding.why)
    if not finding.path.endswith(notebooks.SUFFIX):
        return finding if why == finding.why else replace(finding, why=why)
    number, line, file_line = _book(finding.path, books).place(finding.line)
    return replace(
        finding, line=line, end_line=finding.end_line - finding.line + line, cell=number, why=why,
        applicability=Applicability.DISPLAY_ONLY, file_line=file_line,
    )  # fmt: skip


def _step_in_cell(step: Step, books: dict[str, _Notebook]) -> Step:
    if not step.path.endswith(notebooks.SUFFIX):
        return step
    number, line, file_line = _book(step.path, books).place(step.line)
    return Step(f"{step.path}:cell {number}", line, step.text, file_line)


def _book(path: str, books: dict[str, _Notebook]) -> _Notebook:
    if path not in books:
        books[path] = _Notebook(path)
    return books[path]

"""Pieces of a Markdown page for a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hotlap.records.figures import number
from hotlap.report.shared.figures import parts_of
from hotlap.report.shared.parts import Segment, Table

BAR = 50


def bar_lines(segments: Sequence[Segment]) -> Iterator[str]:
    if not segments:
        return
    widths = parts_of(BAR, [segment.share for segment in segments])
    yield "| phase | ms/step | % of step | |"
    yield "|---|---:|---:|---|"
    for segment, width in zip(segments, widths, strict=True):
        yield f"| {plain(segment.name)} | {number(segment.ms)} | {plain(segment.percent)} | {'█' * width} |"
    yield ""


def table_lines(table: Table) -> Iterator[str]:
    yield f"**{plain(table.title)}**"
    yield ""
    yield "| " + " | ".join(column.title for column in table.columns) + " |"
    yield "|" + "|".join("---:" if column.figures else "---" for column in table.columns) + "|"
    for i, row in enumerate(table.rows):
        cells = [
            code(cell) if column.place and cell != "–" else plain(cell)
            for column, cell in zip(table.columns, row, strict=True)
        ]
        yield ("| " + " | ".join(f"**{cell}**" if i == table.marked and cell else cell for cell in cells) + " |")
    yield ""
    if table.note:
        yield f"_{plain(table.note)}_"
        yield ""


def list_lines(title: str, items: Sequence[str], numbered: bool = False) -> Iterator[str]:
    if not items:
        return
    yield f"**{title}**"
    yield ""
    yield from (f"{i}. {plain(item)}" if numbered else f"- {plain(item)}" for i, item in enumerate(items, 1))
    yield ""


def plain(text: str) -> str:
    """Escape text so that Markdown and HTML show it literally, on one line, inside tables too."""
    one_line = " ".join(text.split())
    return re.sub(r"([\\`*_|<>\[\]#~])", r"\\\1", one_line)


def code(text: str) -> str:
    """Quote text as code; vertical bars are replaced, since they end a table cell even inside code."""
    inside = " ".join(text.split()).replace("|", "¦")
    fence = "``" if "`" in inside else "`"
    return f"{fence}{inside}{fence}"

"""The report of a tune as Markdown, for a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.records.figures import number
from hotlap.report.shared.markdown import bar_lines, code, list_lines, plain, table_lines
from hotlap.report.tune.parts import TunePage
from hotlap.report.tune.tables import spelled_out


def draw(page: TunePage) -> str:
    return "\n".join(_lines(page)).rstrip() + "\n"


def _lines(page: TunePage) -> Iterator[str]:
    yield f"### {plain(page.sentence)}"
    yield ""
    for detail in page.details:
        yield plain(detail)
        yield ""
    yield "| | | |"
    yield "|---|---:|---|"
    for figure in page.figures:
        yield f"| {plain(figure.label)} | **{plain(figure.value)}** | {plain(figure.note)} |"
    yield ""
    yield from table_lines(spelled_out(page))
    yield from list_lines("Loss", page.losses.facts)
    yield from list_lines("Not covered", page.not_covered)
    yield from list_lines("Files", page.files)
    yield from list_lines("At full length", page.length.facts)
    for table in (
        page.compared,
        page.length.table,
        page.before_after,
        *page.losses.tables,
        page.not_tried,
        page.broken,
    ):
        if table is not None and table.rows:
            yield from table_lines(table)
    yield from _step(page)
    yield from _where(page)
    yield from _again(page)
    yield from (f"- {name}: {code(text) if name == 'command' else plain(text)}" for name, text in page.footer)


def _step(page: TunePage) -> Iterator[str]:
    bars = page.bars
    yield "**Step**"
    yield ""
    if bars.before_ms is not None:
        after = f" → {number(bars.after_ms)} ms after" if bars.after_ms is not None else ""
        yield f"{number(bars.before_ms)} ms before{after}. {plain(bars.note)}"
    else:
        yield plain(bars.note)
    yield ""
    yield from bar_lines(bars.segments)


def _where(page: TunePage) -> Iterator[str]:
    if page.time is None:
        yield from list_lines("Where the time went", (page.no_time,))
        return
    yield from list_lines("Where the time went", (page.time.sentence, *page.time.figures))
    for table in page.time.tables:
        yield from table_lines(table)


def _again(page: TunePage) -> Iterator[str]:
    yield "**Reproduce it**"
    yield ""
    yield from (f"- {plain(command.what)}: {code(command.line)}" for command in page.commands)
    yield ""

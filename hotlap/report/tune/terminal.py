"""The report of a tune in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from hotlap.records.figures import number
from hotlap.report.shared.terminal import Bar, draw_list, draw_table, in_its_encoding, pairs, show
from hotlap.report.tune.parts import FASTER, NO_SPEEDUP, TunePage
from hotlap.report.tune.tables import drawn, reason

STYLES = {FASTER: "bold green", NO_SPEEDUP: "bold"}


def draw(page: TunePage, console: Console) -> None:
    in_its_encoding(console, lambda: _draw(page, console))


def _draw(page: TunePage, console: Console) -> None:
    show(console, Text(page.sentence, STYLES.get(page.state, "bold yellow")))
    for detail in page.details:
        show(console, Text(detail, "dim"))
    console.print()
    console.print(pairs(tuple((figure.label, f"{figure.value}  {figure.note}".strip()) for figure in page.figures)))
    _bars(page, console)
    if page.rows or page.noise:
        console.print()
        draw_table(drawn(page, console.width), console)
    draw_list(console, "Why", tuple(f"{row.name}, {row.state}: {reason(row)}" for row in page.rows))
    draw_list(console, "Loss", page.losses.facts)
    draw_list(console, "Not covered", page.not_covered)
    draw_list(console, "Files", page.files)
    draw_list(console, "At full length", page.length.facts)
    tables = (page.compared, page.before_after, *page.losses.tables, page.length.table, page.not_tried, page.broken)
    for table in tables:
        if table is not None and table.rows:
            console.print()
            draw_table(table, console)
    _where(page, console)
    console.print()
    console.print(Text("Reproduce it", "bold"))
    console.print(pairs(tuple((command.what, command.line) for command in page.commands)))
    console.print()
    console.print(pairs(page.footer))


def _bars(page: TunePage, console: Console) -> None:
    bars = page.bars
    console.print()
    console.print(Text("Step", "bold"))
    if bars.before_ms is not None:
        after = f" → {number(bars.after_ms)} ms after" if bars.after_ms is not None else ""
        show(console, Text(f"{number(bars.before_ms)} ms before{after}"))
    if bars.segments:
        console.print(Bar(bars.segments))
    show(console, Text(bars.note, "dim"))


def _where(page: TunePage, console: Console) -> None:
    if page.time is None:
        draw_list(console, "Where the time went", (page.no_time,))
        return
    draw_list(console, "Where the time went", (page.time.sentence, *page.time.figures))
    for table in page.time.tables:
        if table.title == "Findings":
            console.print()
            draw_table(table, console)

"""The report of a tune in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import rich.table
from rich.console import Console
from rich.text import Text

from hotlap.records.figures import number
from hotlap.report.shared.figures import times
from hotlap.report.shared.terminal import Bar, draw_list, draw_table, in_its_encoding, pairs, show
from hotlap.report.tune.parts import FASTER, KEPT, NO_SPEEDUP, PENDING, STATES, Figure, Row, TunePage
from hotlap.report.tune.tables import drawn, reason

ALSO_BELOW = ("Kept", "Noise")  # figures that the ending leaves to its list of results and to the report
STYLES = {FASTER: "bold green", NO_SPEEDUP: "bold"}


def draw(page: TunePage, console: Console) -> None:
    in_its_encoding(console, lambda: _draw(page, console))


def draw_ending(page: TunePage, console: Console) -> None:
    """Draw what a tune ends with: the verdict, what is kept and what is not, and what to type next."""
    in_its_encoding(console, lambda: _draw_ending(page, console))


def _draw_ending(page: TunePage, console: Console) -> None:
    _sentence(page, console)
    console.print(_figures(tuple(figure for figure in page.figures if figure.label not in ALSO_BELOW)))
    console.print(pairs(tuple((state, cut(names, console.width)) for state, names in outcomes(page))))
    console.print()
    console.print(pairs(tuple((command.what, command.line) for command in page.next_steps)))


def outcomes(page: TunePage) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each result with the names of the optimisations that have it; those kept with what they gained."""
    for state in STATES:
        names = tuple(_outcome(row) for row in page.rows if row.state == state)
        if names:
            yield state, names


def _outcome(row: Row) -> str:
    return f"{row.name} {times(row.shown.ratio)}" if row.state == KEPT and row.shown is not None else row.name


def cut(names: Sequence[str], width: int) -> str:
    """Join the names that fit in one line beside the result; say how many more there are."""
    room = width - len(PENDING) - len(", and 99 more") - 2
    shown = [name for i, name in enumerate(names) if i == 0 or len(", ".join(names[: i + 1])) <= room]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f", and {more} more" if more else "")


def _sentence(page: TunePage, console: Console) -> None:
    show(console, Text(page.sentence, STYLES.get(page.state, "bold yellow")))
    for detail in page.details:
        show(console, Text(detail, "dim"))
    console.print()


def _figures(figures: Sequence[Figure]) -> rich.table.Table:
    return pairs(tuple((figure.label, f"{figure.value}  {figure.note}".strip()) for figure in figures))


def _draw(page: TunePage, console: Console) -> None:
    _sentence(page, console)
    console.print(_figures(page.figures))
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

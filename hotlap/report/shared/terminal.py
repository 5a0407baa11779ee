"""Pieces of a terminal page, drawn with rich. Every string is a rich Text, so that a user's brackets are not markup."""

from __future__ import annotations

import re
from collections.abc import Callable

import rich.box
import rich.padding
import rich.table
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from hotlap.records.figures import number
from hotlap.report.shared.figures import parts_of
from hotlap.report.shared.parts import Segment, Table

COLOURS = {
    "data": "red3",
    "copy": "dark_orange",
    "forward": "dodger_blue1",
    "backward": "slate_blue1",
    "optimizer": "dark_turquoise",
    "sync": "deep_pink2",
    "garbage": "gold3",
    "evaluation": "grey42",
    "rest": "grey62",
}
SPAN_COLOURS = ("green3", "dark_sea_green4", "spring_green1", "chartreuse4")
WIDEST_BAR = 100
WHOLE = 20  # characters of a word that is not broken; a path may be longer
GAP = 3  # columns between two
ROOMY = 76  # columns; narrower tables drop their extra columns
# Replacements for terminals whose encoding lacks these characters.
ASCII = str.maketrans(
    {
        "×": "x",
        "–": "-",
        "·": "|",
        "µ": "u",
        "…": "~",
        "█": "#",
        "■": "#",
        "→": ">",
        "“": '"',
        "”": '"',
        "─": "-",
        "━": "-",
        "│": "|",
    }
)


# Between a number and its unit while lines are broken, since rich breaks them at every space, the unbreakable too.
GLUE = "\ue000"
UNIT = re.compile(r"(?<=\d) (?=(?:%|µs|ms|s|min|h|d|MB|GB|samples/s|steps?|processes|cores)\b|%)")


def in_its_encoding(console: Console, draw_all: Callable[[], None]) -> None:
    with console.capture() as captured:
        draw_all()
    text = captured.get().replace(GLUE, " ")
    if not console.encoding.lower().startswith("utf"):
        text = text.translate(ASCII).encode(console.encoding, "replace").decode(console.encoding)
    console.file.write(text)
    console.file.flush()


def glued(text: str, style: str = "") -> Text:
    """Return the text with each number kept on one line with its unit."""
    return Text(UNIT.sub(GLUE, text), style)


def show(console: Console, text: Text) -> None:
    if text.plain:
        text.plain = UNIT.sub(GLUE, text.plain)
        console.print(text, highlight=False)


class Bar:
    """The step as one bar with a legend; without colour, letters tell the phases apart."""

    def __init__(self, segments: tuple[Segment, ...]) -> None:
        self.segments = segments
        self.colours = _colours(segments)
        self.letters = _letters(segments)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        coloured = console.color_system is not None and not console.no_color
        bar = Text(no_wrap=True)
        width = min(options.max_width, WIDEST_BAR)
        for i, cells in enumerate(self._cells(width)):
            bar.append(("█" if coloured else self.letters[i]) * cells, self.colours[i])
        yield bar
        yield from self._legend(coloured, options.max_width)

    def _cells(self, width: int) -> list[int]:
        """Return the width of each phase; every phase gets at least one cell if there is room."""
        if len(self.segments) >= width:
            return parts_of(width, [segment.share for segment in self.segments])
        return [1 + more for more in parts_of(width - len(self.segments), [segment.share for segment in self.segments])]

    def _legend(self, coloured: bool, width: int) -> RenderResult:
        entries = [self._entry(i, coloured) for i in range(len(self.segments))]
        groups = max(1, min(3, width // 38, len(entries)))
        height = -(-len(entries) // groups)
        grid = rich.table.Table.grid(padding=(0, 1))
        for group in range(groups):
            grid.add_column(no_wrap=True)
            grid.add_column(overflow="ellipsis", no_wrap=True)
            grid.add_column(justify="right", no_wrap=True)
            grid.add_column(justify="right", no_wrap=True)
            if group < groups - 1:
                grid.add_column(width=2)
        for row in range(height):
            cells: list[Text] = []
            for group in range(groups):
                at = group * height + row
                cells += entries[at] if at < len(entries) else [Text()] * 4
                cells += [Text()] if group < groups - 1 else []
            grid.add_row(*cells)
        yield grid

    def _entry(self, i: int, coloured: bool) -> list[Text]:
        segment = self.segments[i]
        swatch = Text("■" if coloured else self.letters[i], self.colours[i])
        return [swatch, Text(segment.name), Text(f"{number(segment.ms)} ms"), Text(segment.percent, "bold")]


def _colours(segments: tuple[Segment, ...]) -> list[str]:
    own = [segment.phase for segment in segments if segment.phase not in COLOURS]
    spans = {phase: SPAN_COLOURS[i % len(SPAN_COLOURS)] for i, phase in enumerate(own)}
    return [COLOURS.get(segment.phase) or spans[segment.phase] for segment in segments]


def _letters(segments: tuple[Segment, ...]) -> list[str]:
    """Return a letter for each segment: a phase's initial, or a digit for a user's span."""
    own = [segment.phase for segment in segments if segment.phase not in COLOURS]
    digits = {phase: str((i + 1) % 10) for i, phase in enumerate(own)}
    return [digits.get(segment.phase) or segment.name[0].upper() for segment in segments]


def draw_table(table: Table, console: Console) -> None:
    drawn = rich.table.Table(
        title=Text(table.title, "bold"),
        title_justify="left",
        box=rich.box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1),
    )
    visible = _fitting(table, console.width)
    widths = _widths(table, visible, console.width)
    for i in visible:
        column = table.columns[i]
        drawn.add_column(
            Text(column.title),
            justify="right" if column.figures else "left",
            no_wrap=column.figures,
            overflow="fold",
            width=widths.get(i),
            min_width=_narrowest(table, i) if console.width >= ROOMY else column.minimum,
        )
    for i, row in enumerate(table.rows):
        drawn.add_row(*(glued(row[j]) for j in visible), style="bold red" if i == table.marked else None)
    console.print(drawn)
    show(console, Text(table.note, "dim"))


def _fitting(table: Table, width: int) -> list[int]:
    """Return the columns to draw: rich would leave out the last ones, whatever is in them, where not all fit."""
    visible = [i for i, column in enumerate(table.columns) if width >= ROOMY or not column.extra]
    while sum(_least(table, i) + GAP for i in visible) - GAP > width:
        extra = [i for i in visible if table.columns[i].extra]
        if not extra:
            break
        visible.remove(extra[-1])
    return visible


def _widths(table: Table, visible: list[int], width: int) -> dict[int, int]:
    """Shrink the widest columns until all fit: rich shrinks those that cannot, and then cuts off the last column."""
    widths = {i: max(len(text) for text in (table.columns[i].title, *(row[i] for row in table.rows))) for i in visible}
    while sum(widths.values()) + GAP * (len(visible) - 1) > width:
        wide = [i for i in visible if widths[i] > _least(table, i)]
        if not wide:
            return {}
        widths[max(wide, key=lambda i: widths[i])] -= 1
    return widths


def _least(table: Table, i: int) -> int:
    if table.columns[i].figures:
        return max(len(text) for text in (table.columns[i].title, *(row[i] for row in table.rows)))
    return max(_narrowest(table, i) or 0, *map(len, table.columns[i].title.split()), 1)


def _narrowest(table: Table, i: int) -> int | None:
    """Return a width at which names stay whole: rich would rather break them than give a sentence another line."""
    column = table.columns[i]
    words = [word for row in table.rows for word in row[i].split()]
    longest = 0 if column.figures else min(WHOLE, max(map(len, words), default=0))
    return max(longest, column.minimum or 0) or None


def draw_list(console: Console, title: str, items: tuple[str, ...], numbered: bool = False) -> None:
    if not items:
        return
    console.print()
    console.print(Text(title, "bold"))
    grid = rich.table.Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(overflow="fold")
    for i, item in enumerate(items, 1):
        grid.add_row(Text(f"{i}." if numbered else "-", "dim"), glued(item))
    console.print(grid)


def pairs(named: tuple[tuple[str, str], ...]) -> rich.table.Table:
    grid = rich.table.Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in named:
        grid.add_row(Text(name, "dim"), glued(text, "dim"))
    return grid

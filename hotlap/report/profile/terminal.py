"""The page of a profile in a terminal. Every string is a rich Text, so that a user's brackets are not markup."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from hotlap.report.profile.page import Page
from hotlap.report.shared.terminal import Bar, draw_list, draw_table, in_its_encoding, pairs, show

VERDICT_STYLES = {"balanced": "bold green", "compute-bound": "bold green", "unknown": "bold yellow"}


def draw(page: Page, console: Console) -> None:
    in_its_encoding(console, lambda: _draw(page, console))


def _draw(page: Page, console: Console) -> None:
    show(console, _sentence(page))
    show(console, Text(" · ".join(page.figures), "bold"))
    show(console, Text(" · ".join(page.background), "dim"))
    if page.segments:
        console.print()
        console.print(Bar(page.segments))
    for table in page.tables:
        console.print()
        draw_table(table, console)
    draw_list(console, "What to do next", page.next_steps, numbered=True)
    draw_list(console, "Cautions", page.cautions)
    draw_list(console, "Not known", page.unknowns)
    console.print()
    console.print(pairs(page.footer))


def _sentence(page: Page) -> Text:
    head, colon, tail = page.sentence.partition(":")
    style = VERDICT_STYLES.get(page.verdict, "bold red")
    return Text.assemble((head + colon, style), tail)

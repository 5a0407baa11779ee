"""The page of a profile as Markdown, for a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.report.profile.page import Page
from hotlap.report.shared.markdown import bar_lines, code, list_lines, plain, table_lines


def draw(page: Page) -> str:
    return "\n".join(_lines(page)).rstrip() + "\n"


def _lines(page: Page) -> Iterator[str]:
    yield f"### {plain(page.sentence)}"
    yield ""
    yield plain(" · ".join(page.figures)) + "  "
    yield plain(" · ".join(page.background))
    yield ""
    yield from bar_lines(page.segments)
    for table in page.tables:
        yield from table_lines(table)
    yield from list_lines("What to do next", page.next_steps, numbered=True)
    yield from list_lines("Cautions", page.cautions)
    yield from list_lines("Not known", page.unknowns)
    yield from (f"- {name}: {code(text) if name == 'command' else plain(text)}" for name, text in page.footer)

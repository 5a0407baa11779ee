"""The page of a profile as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.report.profile.page import Page
from hotlap.report.shared import svg_bars
from hotlap.report.shared.html import bullets, document, facts, paragraph, section, subject, table, text
from hotlap.report.shared.svg_bars import phase_list


def draw(page: Page, run: str) -> str:
    body = "\n".join(piece for piece in _sections(page) if piece)
    return document(f"{page.sentence} · hotlap", "profile", run, body)


def _sections(page: Page) -> Iterator[str]:
    yield subject(page.footer)
    yield f"<h1>{text(page.sentence)}</h1>"
    yield paragraph(" · ".join(page.figures), "lead")
    yield paragraph(" · ".join(page.background), "note")
    if page.segments:
        bar = f"<figure>{svg_bars.phases(page.segments)}</figure>"
        yield section("A step", bar, phase_list(page.segments))
    if page.next_steps:
        yield section("What to do next", bullets(page.next_steps, ordered=True))
    for shown in page.tables:
        yield section(shown.title, table(shown, caption=False))
    for title, items in (("Cautions", page.cautions), ("Not known", page.unknowns)):
        if items:
            yield section(title, bullets(items))
    yield section("Measured on", facts(page.footer))

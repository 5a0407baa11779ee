"""Pieces of an HTML page: one file, without scripts or network requests."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from hotlap.report.shared.figures import clean
from hotlap.report.shared.html_style import STYLE
from hotlap.report.shared.parts import Column, Table

LONGEST_WORD = 32  # characters of a cell that is never wrapped
# Forbids every request and script, whatever slipped into the page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def text(value: str) -> str:
    """Escape text for HTML, attributes included."""
    return html.escape(clean(value), quote=True).replace(" %", "\u00a0%")


def document(title: str, kind: str, meta: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{text(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header class="top">
<span class="mark">hotlap</span> <span>{text(kind)}</span> <span class="meta">{text(meta)}</span>
</header>
<main>
{body}
</main>
</body>
</html>
"""


def section(title: str, *inside: str) -> str:
    name = re.sub(r"[^a-z]+", "-", title.lower()).strip("-")
    body = "\n".join(piece for piece in inside if piece)
    return f'<section aria-labelledby="{name}">\n<h2 id="{name}">{text(title)}</h2>\n{body}\n</section>'


def paragraph(words: str, style: str = "") -> str:
    return f"<p{_styled(style)}>{text(words)}</p>" if words else ""


def subject(named: Iterable[tuple[str, str]]) -> str:
    """Say what was measured, and where: the command and the machine, of the facts at the end of the page."""
    known = dict(named)
    told = "".join(f"<span>{text(known[name])}</span>" for name in ("machine", "versions") if known.get(name))
    return f'<p class="subject"><code>{text(known.get("command", ""))}</code>{told}</p>'


def bullets(items: Iterable[str], ordered: bool = False) -> str:
    inside = "".join(f"<li>{text(item)}</li>" for item in items)
    tag = "ol" if ordered else "ul"
    return f"<{tag}>{inside}</{tag}>" if inside else ""


def titled(title: str, inside: str) -> str:
    return f"<h3>{text(title)}</h3>\n{inside}" if inside else ""


def table(shown: Table, caption: bool = True) -> str:
    """Render a table in a box that scrolls sideways when the screen is too narrow."""
    if not shown.rows:
        return ""
    name = text(shown.title)
    title = f"<caption>{name}</caption>" if caption else f'<caption class="unseen">{name}</caption>'
    head = "".join(_head(column) for column in shown.columns)
    rows = "\n".join(_row(shown, i, row) for i, row in enumerate(shown.rows))
    note = paragraph(shown.note, "note")
    return (
        f'<div class="scroll" role="region" aria-label="{name}" tabindex="0"><table>{title}'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>{note}"
    )


def _head(column: Column) -> str:
    inside = text(column.title) or '<span class="unseen">what</span>'
    return f'<th scope="col"{_styled("n" if column.figures else "")}>{inside}</th>'


def _row(shown: Table, number: int, row: tuple[str, ...]) -> str:
    cells = (_cell(column, cell, first=i == 0) for i, (column, cell) in enumerate(zip(shown.columns, row, strict=True)))
    return f"<tr{_styled('marked' if number == shown.marked else '')}>{''.join(cells)}</tr>"


def _cell(column: Column, cell: str, first: bool) -> str:
    inside = f"<code>{text(cell)}</code>" if column.place else text(cell)
    style = _styled("n" if column.figures else "word" if " " not in cell and len(cell) <= LONGEST_WORD else "")
    return f'<th scope="row"{style}>{inside}</th>' if first else f"<td{style}>{inside}</td>"


def facts(pairs: Iterable[tuple[str, str]], style: str = "facts") -> str:
    """Render names and values as a description list."""
    inside = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in pairs)
    return f"<dl{_styled(style)}>{inside}</dl>" if inside else ""


def _styled(style: str) -> str:
    return f' class="{style}"' if style else ""

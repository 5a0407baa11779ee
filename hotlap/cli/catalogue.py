"""hotlap list and hotlap explain CODE: what hotlap can apply, and what it finds in source."""

from __future__ import annotations

import click
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from hotlap import catalog
from hotlap.catalog import patterns


@click.command("list")
def list_entries() -> None:
    """List what hotlap can apply and what it finds in source."""
    table = Table(box=None, pad_edge=False)
    for heading in ("code", "name", "risk", "what it does"):
        table.add_column(heading, no_wrap=heading != "what it does")
    for name, entry in sorted(catalog.entries().items(), key=lambda pair: pair[1].code):
        notes = [
            text
            for text in ("GPU" if entry.device == "cuda" else "", f"={entry.values}" if entry.values else "")
            if text
        ]
        table.add_row(entry.code, name, entry.risk, entry.title + (f" ({', '.join(notes)})" if notes else ""))
    for rule in patterns.rules().values():
        if rule.name not in catalog.entries():
            table.add_row(rule.code, rule.name, "preview" if rule.preview else "scan", rule.title)
    Console(highlight=False).print(table)


@click.command()
@click.argument("code")
def explain(code: str) -> None:
    """Explain an optimisation or a rule of hotlap scan: what it changes, when it helps and when it does not."""
    Console(highlight=False).print(Markdown(catalog.card(patterns.name_of(code) or catalog.name_of(code))))

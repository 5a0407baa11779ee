"""hotlap list and hotlap explain CODE: what there is to apply."""

from __future__ import annotations

import click
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from hotlap import catalog


@click.command("list")
def list_entries() -> None:
    """List the optimisations that hotlap can apply."""
    table = Table(box=None, pad_edge=False)
    for heading in ("code", "name", "risk", "what it does"):
        table.add_column(heading, no_wrap=heading != "what it does")
    for name, entry in sorted(catalog.entries().items(), key=lambda pair: pair[1].code):
        notes = [
            text
            for text in ("GPU" if entry.device == "cuda" else "", f"={entry.values}" if entry.values else "")
            if text
        ]
        table.add_row(entry.code, name, entry.risk.value, entry.title + (f" ({', '.join(notes)})" if notes else ""))
    Console(highlight=False).print(table)


@click.command()
@click.argument("code")
def explain(code: str) -> None:
    """Explain one optimisation: what it changes, when it helps, when it does not."""
    Console(highlight=False).print(Markdown(catalog.card(catalog.name_of(code))))

"""hotlap doctor [PYTHON]: what works on this machine and with this torch, what does not, and why."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hotlap.records.visible import everywhere
from hotlap.workflows.doctor import Check, State
from hotlap.workflows.doctor import doctor as checked

MARKS = {State.GOOD: ("ok", "green"), State.NOTE: ("note", "yellow"), State.PROBLEM: ("problem", "bold red")}


@click.command()
@click.argument("python", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(python: str | None, as_json: bool) -> int:
    """Check this machine and its torch: what works here, what does not, and why.

    PYTHON is the interpreter that trains; by default the one that `python` starts. Exit code 0: hotlap works here. 1:
    something must be repaired first.
    """
    checks = everywhere(checked(python or shutil.which("python") or sys.executable))
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], indent=2, ensure_ascii=False))
    else:
        _draw(checks)
    return 1 if any(check.state is State.PROBLEM for check in checks) else 0


def _draw(checks: tuple[Check, ...]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        word, style = MARKS[check.state]
        table.add_row(Text(word, style), check.name, Text(f"{check.found}\n{check.advice}".rstrip()))
    Console(highlight=False).print(table)

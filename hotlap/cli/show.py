"""hotlap show [RUN]: draw a kept run again."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from hotlap import report, store


@click.command()
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown.")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="Where runs are kept.  [default: .hotlap]",
)
def show(run: str | None, as_json: bool, as_markdown: bool, run_dir: Path | None) -> int:
    """Show a kept run again: by id, by the start of it, by its folder, or the newest."""
    found = store.find(run, run_dir)
    observation, diagnosis = found.observation(), found.diagnosis()
    if as_json:
        click.echo(report.as_json(observation, diagnosis), nl=False)
    elif as_markdown:
        click.echo(report.markdown(observation, diagnosis), nl=False)
    else:
        report.terminal(observation, diagnosis, Console(highlight=False))
    return 0

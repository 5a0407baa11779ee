"""hotlap show [RUN]: show a saved run again."""

from __future__ import annotations

from pathlib import Path

import click

from hotlap import store
from hotlap.cli import completion
from hotlap.cli.report import JSON, MARKDOWN, draw, records, render


@click.command()
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown.")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="Find runs here.  [default: the project's state folder]",
)
def show(run: str | None, as_json: bool, as_markdown: bool, run_dir: Path | None) -> int:
    """Show a saved run again: by id, by the beginning of its id, by its folder, or the newest."""
    if as_json and as_markdown:
        raise click.UsageError("--json and --markdown exclude each other; give one of them.")
    loaded = records(store.find(run, run_dir))
    if as_json or as_markdown:
        click.echo(render(loaded, JSON if as_json else MARKDOWN), nl=False)
    else:
        draw(loaded)
    return 0

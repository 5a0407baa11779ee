"""Files that the user names for a result: a page never takes the place of a script."""

from __future__ import annotations

from pathlib import Path

import click

JSON, MARKDOWN = (".json",), (".md", ".markdown", ".txt")


def spare_others(path: Path | None, *suffixes: str) -> None:
    """Refuse to overwrite a file whose suffix says that it is something else."""
    if path is not None and path.is_file() and path.suffix.lower() not in suffixes:
        ours = " or ".join(suffixes[:2])
        raise click.UsageError(f"{path} exists, and its suffix is not {ours}; name another file.")

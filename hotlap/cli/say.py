"""Prints lines that may contain text hotlap did not write: names from files, paths, messages of programs."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from hotlap.patch.voice import STDERR, to_a_new_line
from hotlap.records.visible import visible

if TYPE_CHECKING:
    from rich.console import Console


def say(line: str) -> None:
    """Print a line on stderr, prefixed with "hotlap: ". Where it cannot be written, the command still runs."""
    with suppress(OSError):
        print(f"{line_break()}hotlap: {visible(line)}", file=sys.stderr, flush=True)


def line_break() -> str:
    """Return what to print to stderr first where the command may have left a progress bar or half a line there."""
    with suppress(OSError, ValueError, AttributeError):
        return to_a_new_line() if sys.stderr.fileno() == STDERR else ""
    return ""


def note(console: Console, line: str, style: str = "dim") -> None:
    """Print a line under a report, without markup and without wrapping, so that a path stays whole."""
    from rich.text import Text  # imported only here: hotlap run draws nothing and must become the command quickly

    console.print(Text(visible(line), style), soft_wrap=True)

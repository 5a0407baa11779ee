"""Every line for a terminal that may hold what we did not write: names from files, paths, messages of programs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hotlap.records.visible import visible

if TYPE_CHECKING:
    from rich.console import Console


def say(line: str) -> None:
    """On stderr, after our name."""
    print(f"hotlap: {visible(line)}", file=sys.stderr, flush=True)


def note(console: Console, line: str, style: str = "dim") -> None:
    """Under a report; nothing in it is markup, and a path is not broken in two."""
    from rich.text import Text  # only here: hotlap run draws nothing, and is to be gone soon

    console.print(Text(visible(line), style), soft_wrap=True)

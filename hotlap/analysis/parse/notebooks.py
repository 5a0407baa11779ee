"""Notebooks as programs: the code cells one after the other, and the way back from a line to its cell."""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_right
from typing import Any

SUFFIX = ".ipynb"
LARGEST = 50_000_000  # bytes; most of a large notebook is pictures
_MARK = "# hotlap: cell "
_PLAIN_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%wandb")  # what follows is Python
_MAGIC = re.compile(r"^(\s*)(?:[%!?].*|[\w.\[\]()]+\?+\s*)$")
_ASSIGNED = re.compile(r"^(\s*[\w, ]+=\s*)[%!].*$")


def program(data: bytes) -> str | None:
    """The text of a notebook's code cells; None where it is no notebook. Cells that are no Python are left empty."""
    try:
        notebook: Any = json.loads(data)
        cells = [_source(one) for one in notebook["cells"] if one["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    plain = [_without_magics(one) for one in cells]
    if not _is_python("\n".join(plain)):
        plain = [one if _is_python(one) else "" for one in plain]
    return "".join(f"{_MARK}{number}\n{one}\n" for number, one in enumerate(plain, 1))


def _source(cell: Any) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def _without_magics(cell: str) -> str:
    """As many lines as before: what is for the shell or for IPython becomes `pass`."""
    lines = cell.split("\n")
    first = lines[0].strip()
    if first.startswith("%%"):
        if not first.startswith(_PLAIN_MAGICS):
            return "\n" * (len(lines) - 1)
        lines[0] = ""
    return "\n".join(_ASSIGNED.sub(r"\1None", _MAGIC.sub(r"\1pass", line)) for line in lines)


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def starts(text: str) -> list[int]:
    """The line before the first one of each cell."""
    return [number for number, line in enumerate(text.split("\n"), 1) if line.startswith(_MARK)]


def cell_at(cells: list[int], line: int) -> tuple[int, int]:
    """The cell, from 1, and the line in it."""
    number = bisect_right(cells, line)
    return number, line - cells[number - 1] if number else line

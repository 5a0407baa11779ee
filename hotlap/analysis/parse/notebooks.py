"""Reads notebooks as programs: joins the code cells, and maps lines back to their cell."""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_right
from typing import Any

SUFFIX = ".ipynb"
LARGEST = 50_000_000  # bytes; most of a large notebook is pictures
_MARK = "# hotlap: cell "
_PLAIN_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%wandb")  # the rest of the cell is Python
_MAGIC = re.compile(r"^(\s*)(?:[%!?].*|[\w.\[\]()]+\?+\s*)$")
_ASSIGNED = re.compile(r"^(\s*[\w, ]+=\s*)[%!].*$")


def program(data: bytes) -> str | None:
    """Return the text of a notebook's code cells, without those that are not Python, or None if it is no notebook."""
    try:
        notebook: Any = json.loads(data)
        cells = [_source(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    plain = [_without_magics(cell) for cell in cells]
    if not _is_python("\n".join(plain)):
        plain = [cell if _is_python(cell) else "" for cell in plain]
    return "".join(f"{_MARK}{number}\n{cell}\n" for number, cell in enumerate(plain, 1))


def _source(cell: Any) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def _without_magics(cell: str) -> str:
    """Replace commands for the shell or IPython by `pass`, preserving the number of lines."""
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
    """Return the line before the first one of each cell."""
    return [number for number, line in enumerate(text.split("\n"), 1) if line.startswith(_MARK)]


def file_lines(data: bytes) -> list[list[int]]:
    """Return, for each code cell, the lines of the notebook's file that hold its lines."""
    text = data.decode(errors="replace")
    try:
        sources = [_source(cell) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    found, place, counted, number = [], 0, 0, 1
    for source in sources:
        lines = []
        for line in source.splitlines():
            place = max(place, _written(text, line, place))
            number, counted = number + text.count("\n", counted, place), place
            lines.append(number)
            place += len(line)
        found.append(lines)
    return found


def _written(text: str, line: str, start: int) -> int:
    """Return where a line of a cell is written in the file's text, which escapes it, or -1."""
    places = (text.find(json.dumps(line, ensure_ascii=plain)[1:-1], start) for plain in (True, False))
    return next((place for place in places if place >= 0), -1)


def cell_at(cells: list[int], line: int) -> tuple[int, int]:
    """Return the number of the cell, from 1, and the line in it."""
    number = bisect_right(cells, line)
    return number, line - cells[number - 1] if number else line

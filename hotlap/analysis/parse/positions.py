"""Translates the parser's positions to those that people and libcst use."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any


def characters(lines: Sequence[str], line: int, offset: int) -> int:
    """Translate an offset from bytes, as the parser counts, to characters from 0."""
    text = lines[line - 1]
    return offset if text.isascii() else len(text.encode()[:offset].decode(errors="ignore"))


def position_of(node: ast.AST, lines: Sequence[str]) -> str:
    """Return the position of a node as a hint for `Place.node`."""
    parsed: Any = node
    start = characters(lines, parsed.lineno, parsed.col_offset)
    return f"{parsed.lineno}:{start}:{parsed.end_lineno}:{characters(lines, parsed.end_lineno, parsed.end_col_offset)}"

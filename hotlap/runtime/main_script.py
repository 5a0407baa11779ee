"""Whether the main script may run a second time: spawned workers import it again."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import FrameType
from typing import Any

QUIET = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign,
         ast.Try, ast.If, ast.Pass)  # fmt: skip


def why_not_twice(main: Any = None) -> str | None:
    """Return why spawned workers would run parts of the main script again, or None if they would not."""
    main = main or sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if file is None:
        return None  # a spawned process has nothing to import
    try:
        statements = ast.parse(Path(file).read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, ValueError):
        return f"{file} cannot be read as Python source"
    name = Path(file).name
    guards = [statement for statement in statements if _is_guard(statement)]
    if not guards:
        return f'{name} has no `if __name__ == "__main__":`, so every worker would run it again'
    noisy = next((statement for statement in statements if not _quiet(statement)), None)
    if noisy is not None:
        return f"every worker would run line {noisy.lineno} of {name} again"
    line = _line_under_way(main)
    if line is not None and not any(guard.lineno <= line <= (guard.end_lineno or line) for guard in guards):
        return f"every worker would run line {line} of {name} again"
    return None


def _is_guard(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.If) or not isinstance(statement.test, ast.Compare):
        return False
    sides = (statement.test.left, *statement.test.comparators)
    named = any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)
    return named and any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides)


def _quiet(statement: ast.stmt) -> bool:
    docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return docstring or isinstance(statement, QUIET)


def _line_under_way(main: Any) -> int | None:
    """Return the line of the main script that is running, or None on another thread."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals is vars(main) and frame.f_code.co_name == "<module>":
            return frame.f_lineno
        frame = frame.f_back
    return None

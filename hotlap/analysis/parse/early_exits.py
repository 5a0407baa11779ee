"""Finds loops that are left in their first iteration, or after a few."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

from hotlap.analysis.parse import guards


def ends(body: list[ast.stmt]) -> bool:
    """Return whether a loop's body never runs twice: it ends in break or return, unless something fails."""
    last = body[-1]
    if isinstance(last, ast.With | ast.AsyncWith):
        return ends(last.body)
    if isinstance(last, ast.Try) and not last.finalbody:
        inner = ends(last.orelse or last.body)
    else:
        inner = isinstance(last, ast.Break | ast.Return)
    if not inner:
        return False
    again = any(isinstance(statement, ast.Continue) for statement in _own_statements(body))
    return not again or any(isinstance(statement, ast.Try) for statement in body)


def ends_soon(loop: ast.For | ast.AsyncFor, few: Container[str]) -> bool:
    """Match `if count == 3: break`, where count counts iterations and the number is small."""
    for statement in loop.body:
        if (
            isinstance(statement, ast.If)
            and guards.leaves_loop(statement.body)
            and isinstance(statement.test, ast.Compare)
        ):
            name, most = getattr(statement.test.left, "id", ""), statement.test.comparators[0]
            small = guards.is_small(most) or getattr(most, "id", "") in few
            if small and isinstance(statement.test.ops[0], ast.Eq | ast.GtE | ast.Gt) and _counts_turns(loop, name):
                return True
    return False


def _counts_turns(loop: ast.For | ast.AsyncFor, name: str) -> bool:
    numbered = (
        loop.target.elts[0] if isinstance(loop.target, ast.Tuple) and guards.called(loop.iter) == "enumerate" else None
    )
    return bool(name) and (
        getattr(numbered, "id", "") == name
        or any(
            isinstance(statement, ast.AugAssign) and getattr(statement.target, "id", "") == name
            for statement in loop.body
        )
    )


def _own_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of this loop, without those of loops inside it."""
    for statement in body:
        yield statement
        if not isinstance(statement, ast.For | ast.AsyncFor | ast.While | ast.FunctionDef | ast.ClassDef):
            for field in ("body", "orelse", "finalbody"):
                yield from _own_statements(getattr(statement, field, []))
            for handler in getattr(statement, "handlers", []):
                yield from _own_statements(handler.body)

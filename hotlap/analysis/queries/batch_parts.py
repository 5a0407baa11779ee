"""Finds values that an iteration assembles from a batch before moving them: stacked parts, lists it has filled."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Repeated, last_name
from hotlap.analysis.queries.samples import mentions

_JOINS = frozenset(f"torch.{name}" for name in "stack cat concat concatenate hstack vstack".split())
_MOVES = frozenset(("to", "cuda"))


def is_assembled(code: Code, moved: ast.expr) -> bool:
    """Match `torch.stack([g.labels for g in unbatch(batch)])` of a batch that has not been moved to a device yet."""
    loop = code.batch_loop(moved)
    joined = _joined(code, moved)
    if not isinstance(loop, ast.For) or joined is None or not joined.args:
        return False
    still = _unmoved(loop, moved.lineno)
    names = {node.id for node in walk(joined.args[0]) if isinstance(node, ast.Name)}
    bound = {node.id for part in _parts(joined) for node in walk(part.target) if isinstance(node, ast.Name)}
    given = {name for name in names - bound if _is_value(joined.args[0], name)}
    return bool(given & still) and not _moves(joined) and given <= still


def _is_value(node: ast.expr, name: str) -> bool:
    """Return whether the name is used for anything but being called."""
    called = {call.func.id for call in walk(node) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}
    return name not in called


def _parts(node: ast.AST) -> Iterator[ast.comprehension]:
    return (part for part in walk(node) if isinstance(part, ast.comprehension))


def _joined(code: Code, moved: ast.expr) -> ast.Call | None:
    while isinstance(moved, ast.Call):
        if code.full_name(moved.func) in _JOINS:
            return moved
        if not isinstance(moved.func, ast.Attribute):
            return None
        moved = moved.func.value
    return None


def _unmoved(loop: ast.For, line: int) -> set[str]:
    """Return the names derived from the loop's element, up to a line, that have not been moved to a device."""
    found = {part.id for part in walk(loop.target) if isinstance(part, ast.Name)}
    for node in _in_order(loop, line):
        if isinstance(node, ast.Assign):
            names = {part.id for target in node.targets for part in walk(target) if isinstance(part, ast.Name)}
            made = mentions(node.value, found) and not _moves(node.value) and not _runs(node.value)
            found = found | names if made else found - names
        elif isinstance(node, ast.For) and mentions(node.iter, found):
            found |= {part.id for part in walk(node.target) if isinstance(part, ast.Name)}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            listed = isinstance(function, ast.Attribute) and function.attr in ("append", "extend")
            if listed and isinstance(function.value, ast.Name) and mentions(node.value, found):  # type: ignore[attr-defined]
                found |= set() if _moves(node.value) else {function.value.id}  # type: ignore[attr-defined]
    return found


def _in_order(loop: Repeated, line: int) -> list[ast.stmt]:
    every = [
        statement
        for part in loop.body
        for statement in walk(part)
        if isinstance(statement, ast.stmt) and statement.lineno < line
    ]
    return sorted(every, key=lambda statement: statement.lineno)


def _moves(node: ast.AST) -> bool:
    return any(isinstance(call, ast.Call) and last_name(call.func) in _MOVES for call in walk(node))


def _runs(node: ast.AST) -> bool:
    """Return whether something is called that may be a model, whose output is on the device."""
    called = [call.func for call in walk(node) if isinstance(call, ast.Call)]
    return any(isinstance(function, ast.Attribute) and function.attr == "forward" for function in called) or any(
        last_name(function) in ("model", "net", "self") for function in called
    )

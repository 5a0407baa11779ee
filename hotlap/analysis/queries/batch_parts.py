"""What a turn of a loop puts together from a batch before it is moved: stacked parts, lists that were filled."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Repeated, last_name
from hotlap.analysis.queries.samples import mentions

_JOINS = frozenset(f"torch.{name}" for name in "stack cat concat concatenate hstack vstack".split())
_MOVES = frozenset(("to", "cuda"))


def is_assembled(code: Code, moved: ast.expr) -> bool:
    """`torch.stack([g.labels for g in unbatch(batch)])`, of what the loop over batches gave and nobody has moved."""
    loop = code.batch_loop(moved)
    joined = _joined(code, moved)
    if not isinstance(loop, ast.For) or joined is None or not joined.args:
        return False
    still = _unmoved(loop, moved.lineno)
    names = {one.id for one in walk(joined.args[0]) if isinstance(one, ast.Name)}
    bound = {one.id for part in _parts(joined) for one in walk(part.target) if isinstance(one, ast.Name)}
    given = {one for one in names - bound if _is_value(joined.args[0], one)}
    return bool(given & still) and not _moves(joined) and given <= still


def _is_value(node: ast.expr, name: str) -> bool:
    """Not only a function that is called."""
    called = {one.func.id for one in walk(node) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)}
    return name not in called


def _parts(node: ast.AST) -> Iterator[ast.comprehension]:
    return (one for one in walk(node) if isinstance(one, ast.comprehension))


def _joined(code: Code, moved: ast.expr) -> ast.Call | None:
    while isinstance(moved, ast.Call):
        if code.full_name(moved.func) in _JOINS:
            return moved
        if not isinstance(moved.func, ast.Attribute):
            return None
        moved = moved.func.value
    return None


def _unmoved(loop: ast.For, line: int) -> set[str]:
    """Names made of what the loop gives, up to a line, as far as nothing on the way went to a device."""
    found = {one.id for one in walk(loop.target) if isinstance(one, ast.Name)}
    for node in _in_order(loop, line):
        if isinstance(node, ast.Assign):
            names = {one.id for target in node.targets for one in walk(target) if isinstance(one, ast.Name)}
            made = mentions(node.value, found) and not _moves(node.value) and not _runs(node.value)
            found = found | names if made else found - names
        elif isinstance(node, ast.For) and mentions(node.iter, found):
            found |= {one.id for one in walk(node.target) if isinstance(one, ast.Name)}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            listed = isinstance(function, ast.Attribute) and function.attr in ("append", "extend")
            if listed and isinstance(function.value, ast.Name) and mentions(node.value, found):  # type: ignore[attr-defined]
                found |= set() if _moves(node.value) else {function.value.id}  # type: ignore[attr-defined]
    return found


def _in_order(loop: Repeated, line: int) -> list[ast.stmt]:
    every = [one for part in loop.body for one in walk(part) if isinstance(one, ast.stmt) and one.lineno < line]
    return sorted(every, key=lambda one: one.lineno)


def _moves(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Call) and last_name(one.func) in _MOVES for one in walk(node))


def _runs(node: ast.AST) -> bool:
    """Something is called that may be a model: it gives what is on the device."""
    called = [one.func for one in walk(node) if isinstance(one, ast.Call)]
    return any(isinstance(one, ast.Attribute) and one.attr == "forward" for one in called) or any(
        last_name(one) in ("model", "net", "self") for one in called
    )

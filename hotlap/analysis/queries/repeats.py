"""Finds repeated reads of the same value from the device: one expression, in one function and loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries import syncs
from hotlap.analysis.queries.code import Code


@lru_cache(maxsize=2)  # two rules ask for the same file
def repeats(code: Code) -> tuple[tuple[ast.Call, ast.Call], ...]:
    """Return pairs of the first read of a value and each later one in the same batch."""
    return tuple(
        (first, again)
        for first, *later in _same(code)
        for again in later
        if code.hot(first) and code.hot(again) and not _changed_between(code, first, again)
    )


def _same(code: Code) -> Iterator[list[ast.Call]]:
    """Yield the reads of the same expression in the same function and loop, in order."""
    groups: dict[tuple[object, object, str], list[ast.Call]] = {}
    for call, tensor, _ in syncs.explicit(code):
        value = _value(tensor)
        if isinstance(value, ast.Name | ast.Attribute | ast.Subscript):
            key = (code.function(call), next(code.loops(call), None), ast.dump(value))
            groups.setdefault(key, []).append(call)
    for calls in groups.values():
        calls.sort(key=lambda call: (call.lineno, call.col_offset))
        if len(calls) > 1:
            yield calls


def _value(tensor: ast.expr) -> ast.expr:
    """Return `loss` for `loss.detach()` and `loss.data`, which are the same numbers."""
    while True:
        if isinstance(tensor, ast.Call) and isinstance(tensor.func, ast.Attribute) and not tensor.args:
            if tensor.func.attr not in ("detach", "clone"):
                return tensor
            tensor = tensor.func.value
        elif isinstance(tensor, ast.Attribute) and tensor.attr == "data":
            tensor = tensor.value
        else:
            return tensor


def _changed_between(code: Code, first: ast.Call, again: ast.Call) -> bool:
    """Return whether the name is set in between, or the two reads are on different branches."""
    name = _root(first)
    if not _reached_from(code, first, again):
        return True
    scope = next(code.loops(first), None) or code.function(first) or code.tree
    stores = [node for node in walk(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return any(node.id == name and first.lineno <= node.lineno <= again.lineno for node in stores)


def _reached_from(code: Code, first: ast.Call, again: ast.Call) -> bool:
    """Return whether every path to the second read goes through the first."""
    if _under_the_same(code, first, again):
        return True
    if not _is_certain(code, first, again):
        return False
    block = code.block(code.statement(first))
    return any(
        statement in block
        for statement in (code.statement(again), *code.ancestors(again))
        if isinstance(statement, ast.stmt)
    )


def _under_the_same(code: Code, first: ast.Call, again: ast.Call) -> bool:
    """Match `if a: x.item()` and then `x.item() if a and b else 0`: the second read implies the first."""
    needed, met = _conditions(code, first), _conditions(code, again)
    return needed is not None and met is not None and bool(needed) and needed <= met


def _conditions(code: Code, node: ast.AST) -> set[str] | None:
    """Return the conditions for reaching a node within its loop, or None if it is on an `else` branch or the like."""
    found: set[str] = set()
    inner = node
    for outer in code.ancestors(node):
        if isinstance(outer, ast.For | ast.While | ast.FunctionDef | ast.AsyncFunctionDef):
            return found
        if isinstance(outer, ast.If | ast.IfExp) and inner is not outer.test:
            taken = inner in outer.body if isinstance(outer, ast.If) else inner is outer.body
            if not taken:
                return None
            found |= {ast.unparse(part) for part in _every(outer.test)}
        elif isinstance(outer, ast.Try | ast.Lambda | ast.BoolOp | ast.comprehension):
            return None
        inner = outer
    return found


def _every(test: ast.expr) -> list[ast.expr]:
    """Return the parts of `a and b`."""
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def _is_certain(code: Code, first: ast.Call, again: ast.Call) -> bool:
    """Return whether no short-circuit may skip the first read on the way to the second."""
    later, inner = {again, *code.ancestors(again)}, first
    for outer in within(code, first):
        skipped = isinstance(outer, ast.IfExp) and inner is not outer.test
        skipped = skipped or (isinstance(outer, ast.BoolOp) and inner is not outer.values[0])
        if (skipped or isinstance(outer, ast.Lambda)) and inner not in later:
            return False
        inner = outer  # type: ignore[assignment]
    return True


def _root(call: ast.Call) -> str:
    node: ast.AST = call.func if isinstance(call.func, ast.Attribute) else call.args[0]
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def within(code: Code, node: ast.AST) -> Iterator[ast.AST]:
    for outer in code.ancestors(node):
        if isinstance(outer, ast.stmt):
            return
        yield outer

"""Finds values that are read from the device every batch only to be added up or listed until the loop ends."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from hotlap.analysis.parse.terms import NUMBER
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Repeated, last_name


@dataclass(frozen=True)
class Accumulation:
    """A name that collects values in a loop and is not read before the loop ends."""

    name: str
    loop: Repeated
    whole: bool  # the values are integers: counts, not measurements
    listed: bool  # the values are appended to a list, not added up


def accumulated(code: Code, call: ast.Call) -> Accumulation | None:
    """Return what the value is collected in if `.item()` could be called once after the loop, else None."""
    loop = next(code.loops(call), None)
    if loop is None or not code.is_batch_loop(loop) or isinstance(call.func, ast.Name):
        return None
    statement = code.statement(call)
    name, listed = _receiver(code, statement, call)
    if not name or not _only_collected(loop, name, code):
        return None
    start = _empty_start(code, loop, name, listed)
    if start is None or _is_cut_off(code, call, statement):
        return None
    return Accumulation(name, loop, listed or _is_whole(loop, name, start), listed)


def _receiver(code: Code, statement: ast.stmt, call: ast.Call) -> tuple[str, bool]:
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        adds = isinstance(statement.op, ast.Add) and _is_arithmetic(code, statement.value, call)
        return (statement.target.id, False) if adds else ("", False)
    if isinstance(statement, ast.Expr) and _appended(statement.value) is call:
        assert isinstance(statement.value, ast.Call)
        function = statement.value.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            return function.value.id, True
    return "", False


def _appended(node: ast.expr) -> ast.expr | None:
    if isinstance(node, ast.Call) and last_name(node.func) == "append" and len(node.args) == 1:
        return node.args[0]
    return None


def _is_arithmetic(code: Code, value: ast.expr, call: ast.Call) -> bool:
    """Match the value read, alone or multiplied or divided by plain numbers, also inside int() or float()."""
    if value is call:
        return True
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("int", "float"):
        return len(value.args) == 1 and _is_arithmetic(code, value.args[0], call)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult | ast.Div):
        if _is_arithmetic(code, value.left, call):
            return _is_plain(code, value.right)
        return (
            isinstance(value.op, ast.Mult) and _is_arithmetic(code, value.right, call) and _is_plain(code, value.left)
        )
    return False


def _is_plain(code: Code, node: ast.expr) -> bool:
    """Match a number, or a count such as x.size(0) or len(batch)."""
    if isinstance(node, ast.Call):
        return last_name(node.func) in ("size", "len", "numel")
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    return isinstance(node, ast.Constant) or code.kind(node) in (NUMBER, "extent")


def _only_collected(loop: Repeated, name: str, code: Code) -> bool:
    """Return whether the loop only adds or appends to the name, and never reads or sets it."""
    for node in _inside(loop):
        if isinstance(node, ast.Name) and node.id == name and not _collects(code, node):
            return False
        if isinstance(node, ast.Global | ast.Nonlocal) and name in node.names:
            return False
    return True


def _collects(code: Code, node: ast.Name) -> bool:
    parent = code.parent(node)
    if isinstance(parent, ast.AugAssign) and parent.target is node:
        return isinstance(parent.op, ast.Add) and _ends_in_item(parent.value)
    if isinstance(parent, ast.Attribute) and parent.attr == "append":
        grand = code.parent(parent)
        value = _appended(grand) if isinstance(grand, ast.Call) else None
        return value is not None and _ends_in_item(value) and isinstance(value, ast.Call)
    return False


def _ends_in_item(value: ast.expr) -> bool:
    return sum(isinstance(node, ast.Call) and last_name(node.func) == "item" for node in walk(value)) == 1


def _inside(loop: Repeated) -> Iterator[ast.AST]:
    for statement in loop.body:
        yield from walk(statement)


def _empty_start(code: Code, loop: Repeated, name: str, listed: bool) -> ast.expr | None:
    """Return `0` or `[]` if the name's last mention before the loop, outside of other loops, sets it to that."""
    here: ast.stmt = loop
    while True:
        block = code.block(here)
        for statement in reversed(block[: block.index(here)]):
            found = _start(statement, name)
            if found is not None:
                return found if _is_empty(found, listed) else None
            if _mentions(statement, name):
                return None
        parent = code.parent(here)
        if not isinstance(parent, ast.With | ast.If | ast.Try):
            return None
        here = parent


def _start(statement: ast.stmt, name: str) -> ast.expr | None:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.target.id == name:
        return statement.value
    if not isinstance(statement, ast.Assign):
        return None
    for target in statement.targets:
        if isinstance(target, ast.Name) and target.id == name:
            return statement.value
        if isinstance(target, ast.Tuple):
            names = [part.id if isinstance(part, ast.Name) else "" for part in target.elts]
            if name in names and isinstance(statement.value, ast.Tuple) and len(statement.value.elts) == len(names):
                return statement.value.elts[names.index(name)]
    return None


def _is_empty(value: ast.expr, listed: bool) -> bool:
    if listed:
        return isinstance(value, ast.List) and not value.elts
    return isinstance(value, ast.Constant) and type(value.value) in (int, float) and value.value == 0


def _mentions(statement: ast.stmt, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in walk(statement))


def _is_whole(loop: Repeated, name: str, start: ast.expr) -> bool:
    """Return whether the sum stays a whole number in Python, too: it starts as one, and only counts are added to it."""
    added = [
        node.value
        for node in _inside(loop)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id == name
    ]
    return type(getattr(start, "value", None)) is int and all(_is_count(value) for value in added)


def _is_count(value: ast.expr) -> bool:
    """Match `(a == b).sum().item()`, alone or in `int()`; divided or in `float()` it is no whole number any more."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "int" and value.args:
        value = value.args[0]
    return isinstance(value, ast.Call) and last_name(value.func) == "item" and _counts(value)


def _is_cut_off(code: Code, call: ast.Call, statement: ast.stmt) -> bool:
    """Match `int(x.item() * 3)`, whose sum over batches is another one than that of the values themselves."""
    if isinstance(statement, ast.AugAssign) and _is_count(statement.value):
        return False
    around = (
        outer for outer in code.ancestors(call) if isinstance(outer, ast.Call) and code.statement(outer) is statement
    )
    return any(isinstance(outer.func, ast.Name) and outer.func.id == "int" for outer in around)


def _counts(call: ast.Call) -> bool:
    """Match values made by comparing: `(a == b).sum().item()` is a whole number."""
    assert isinstance(call.func, ast.Attribute)
    node: ast.expr = call.func.value
    while True:
        if isinstance(node, ast.Compare):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("eq", "ne", "gt", "lt", "ge", "le", "argmax", "count_nonzero", "logical_and"):
                return True
            if node.func.attr in ("float", "mean", "double"):
                return False
            node = node.func.value
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
            node = node.left
        else:
            return False

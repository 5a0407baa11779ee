"""Tells whether an expression has the same value in every iteration of a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Repeated, last_name

_PURE = frozenset(("len", "int", "float", "range", "tuple", "list", "min", "max", "device"))


def stored_in(statements: Iterable[ast.AST]) -> set[str]:
    """Return the names, and attributes such as `self.x`, that the statements set."""
    found: set[str] = set()
    for statement in statements:
        for node in walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(ast.unparse(node))
    return found


def set_by(loop: Repeated) -> set[str]:
    targets: list[ast.AST] = [loop.target] if isinstance(loop, ast.For | ast.AsyncFor) else []
    return stored_in([*targets, *loop.body])


def is_invariant(node: ast.expr, changing: set[str]) -> bool:
    """Return whether an expression is made of constants and unchanging names only."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Name):
        return node.id not in changing
    if isinstance(node, ast.Attribute):
        return ast.unparse(node) not in changing and is_invariant(node.value, changing)
    if isinstance(node, ast.Call):
        known = isinstance(node.func, ast.Name | ast.Attribute) and last_name(node.func) in _PURE
        return known and all(
            is_invariant(argument, changing) for argument in (*node.args, *(word.value for word in node.keywords))
        )
    if isinstance(node, ast.BinOp | ast.UnaryOp | ast.Tuple | ast.List | ast.Subscript | ast.Starred):
        parts = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return all(is_invariant(part, changing) for part in parts)
    return False


def is_changed(code: Code, name: str, scope: list[ast.stmt], made: ast.stmt, strangers: bool = True) -> bool:
    """Return whether a name is set again or changed in place; with `strangers`, also whether it is stored or passed to
    code that might change it."""
    for statement in scope:
        for node in walk(statement):
            named = isinstance(node, ast.Name) and node.id == name
            if named and (_changes(code, node, made) or (strangers and _gives_away(code, node))):  # type: ignore[arg-type]
                return True
    return False


def _changes(code: Code, node: ast.Name, made: ast.stmt) -> bool:
    parent = code.parent(node)
    if isinstance(node.ctx, ast.Store | ast.Del):
        return parent is not made
    if isinstance(parent, ast.AugAssign):
        return parent.target is node
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.ctx, ast.Store | ast.Del)
    if isinstance(parent, ast.Attribute):
        return parent.attr.endswith("_") or isinstance(parent.ctx, ast.Store) or parent.attr == "data"
    return isinstance(parent, ast.keyword) and parent.arg == "out"


def _gives_away(code: Code, node: ast.Name) -> bool:
    parent = code.parent(node)
    if isinstance(parent, ast.Call) and node in parent.args:
        return last_name(parent.func) in ("append", "extend", "insert", "put") or not _is_known(code, parent)
    return isinstance(parent, ast.Return | ast.Yield | ast.Dict | ast.List | ast.Set)


def _is_known(code: Code, call: ast.Call) -> bool:
    """Match calls of torch's functions and modules, which do not change their arguments."""
    return (
        code.full_name(call.func).startswith("torch.")
        or code.callee_kind(call) in ("module", "tensor")
        or (isinstance(call.func, ast.Attribute) and code.kind(call.func.value) in ("tensor", "module", "batch"))
    )

"""Recognises the usual way to open a file at the first fetch: `if self.file is None: self.file = open_it()`.

Such a condition holds only once. Nothing else may depend on it, or the first item would differ from later ones.
"""

from __future__ import annotations

import ast


def opens_once(node: ast.If) -> bool:
    """Return whether a condition decides nothing but whether attributes are set."""
    if node.orelse:
        return False
    if _is_set(node.test):
        return len(node.body) == 1 and isinstance(node.body[0], ast.Return) and _is_none(node.body[0].value)
    return _is_unset(node.test) and all(map(_sets_attributes, node.body))


def _is_set(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.IsNot)
        and isinstance(test.left, ast.Attribute)
        and _is_none(test.comparators[0])
    )


def _is_unset(test: ast.expr) -> bool:
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is) and _is_none(test.comparators[0]):
        return isinstance(test.left, ast.Attribute) or _asks_for(test.left, "getattr")
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return isinstance(test.operand, ast.Attribute) or _asks_for(test.operand, "hasattr")
    return False


def _asks_for(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _is_none(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)


def _sets_attributes(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute) for target in node.targets)
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Attribute)
    return isinstance(node, ast.Import | ast.ImportFrom) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    )

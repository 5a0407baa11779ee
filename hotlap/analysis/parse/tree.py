"""Walks a tree like ast.walk, but without contexts and operators, in a third of the time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

_PLAIN = frozenset(
    "id ctx attr arg name asname module level op ops kind type_comment conversion simple is_async lineno".split()
)
# The fields that hold nodes, of each class of nodes. None and texts, which may stand in their place, have none.
FIELDS: dict[type[Any], tuple[str, ...]] = {
    kind: tuple(field for field in kind._fields if field not in _PLAIN)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
FIELDS[ast.Constant] = FIELDS[ast.Name] = ()
_SCOPES = frozenset((ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.While))


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Return a node and all nodes within it, breadth first. Those of a scope are kept: many rules ask for them."""
    if node.__class__ not in _SCOPES:
        return iter(_walked(node))
    known = node.__dict__.get("_walked")
    if known is None:
        known = node.__dict__["_walked"] = _walked(node)
    return iter(known)


def _walked(node: ast.AST) -> list[ast.AST]:
    known = FIELDS
    waiting: list[Any] = [node]
    for current in waiting:  # grows during the iteration
        for field in known[current.__class__]:
            value: Any = getattr(current, field)
            if value.__class__ is list:
                waiting += [part for part in value if part.__class__ in known]
            elif value.__class__ in known:
                waiting.append(value)
    return waiting


def unparsed(node: ast.expr) -> str:
    """Return what ast.unparse does; that of a name, as most are, is much quicker."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
        return f"{unparsed(node.value)}.{node.attr}"
    return ast.unparse(node)

"""Walks a tree like ast.walk, but without contexts and operators, in a third of the time."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_PLAIN = frozenset(
    "id ctx attr arg name asname module level op ops kind type_comment conversion simple is_async lineno".split()
)
_FIELDS: dict[type, tuple[str, ...]] = {ast.Constant: (), ast.Name: ()}


def fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """Return the fields of a node that hold nodes."""
    known = _FIELDS.get(kind)
    if known is None:
        known = _FIELDS[kind] = tuple(field for field in kind._fields if field not in _PLAIN)
    return known


_SCOPES = frozenset((ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.While))


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Return a node and all nodes within it, breadth first. Those of a scope are kept: many rules ask for them."""
    if node.__class__ not in _SCOPES:
        return _walked(node)
    known = node.__dict__.get("_walked")
    if known is None:
        known = node.__dict__["_walked"] = tuple(_walked(node))
    return iter(known)


def _walked(node: ast.AST) -> Iterator[ast.AST]:
    waiting = [node]
    for current in waiting:  # grows during the iteration
        yield current
        for field in fields(current.__class__):
            value = getattr(current, field, None)
            if value.__class__ is list:
                waiting += [part for part in value if isinstance(part, ast.AST)]
            elif isinstance(value, ast.AST):
                waiting.append(value)

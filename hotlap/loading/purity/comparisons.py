"""What comparisons give, and what must hold of the values that are compared."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hotlap.loading.purity.plain import is_atom
from hotlap.loading.purity.questions import INERT, need_plain
from hotlap.loading.purity.study import Impure
from hotlap.loading.purity.values import UNKNOWN, Value, fresh


def comparison(ops: Sequence[ast.cmpop], values: Sequence[Value]) -> Value:
    """Return what `values[0] ops[0] values[1] …` yields."""
    only = ops[0] if len(ops) == 1 else None
    if isinstance(only, ast.Is | ast.IsNot):
        same = _is_same(*values)
        return fresh(*values) if same is None else Value(plain=True, known=same is isinstance(only, ast.Is))
    if isinstance(only, ast.Eq | ast.NotEq) and (same := _identical(*values)) is not None:
        return Value(plain=True, known=same is isinstance(only, ast.Eq))
    for op, left, right in zip(ops, values, values[1:], strict=False):
        if not isinstance(op, ast.Is | ast.IsNot):
            _need_compared(op, left, right)
    if only is not None and all(is_atom(type(value.known)) and value.known is not UNKNOWN for value in values):
        return _compared(only, values[0].known, values[1].known, values)
    return fresh(*values, array=any(value.array for value in values))


def _need_compared(op: ast.cmpop, left: Value, right: Value) -> None:
    if isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn):
        need_comparable(left)
    else:
        need_plain(left)
    if isinstance(op, ast.Eq | ast.NotEq):
        need_comparable(right)
    else:
        need_plain(right)


def need_comparable(value: Value) -> None:
    for candidate in value.objects:
        if not _equal_to_itself_alone(candidate) and not isinstance(candidate, INERT):
            raise Impure(f"compares a {type(candidate).__name__}, which customises comparison")
    if value.made:
        raise Impure("compares an object that it creates")
    if value.plain:
        need_plain(replace(value, objects=()))


def _equal_to_itself_alone(candidate: Any) -> bool:
    kind: Any = type(candidate)
    return kind.__eq__ is object.__eq__ and kind.__ne__ is object.__ne__ and kind.__hash__ is object.__hash__


def _compared(op: ast.cmpop, left: Any, right: Any, values: Sequence[Value]) -> Value:
    if isinstance(op, ast.Eq | ast.NotEq) and type(left) in (int, str, bool, float, type(None)):
        return Value(plain=True, known=(left == right) is isinstance(op, ast.Eq))
    if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and {type(left), type(right)} <= {int, float}:
        known = {ast.Lt: left < right, ast.LtE: left <= right, ast.Gt: left > right, ast.GtE: left >= right}[type(op)]
        return Value(plain=True, known=known)
    return fresh(*values)


def _is_same(left: Value, right: Value) -> bool | None:
    for value, reference in ((left, right), (right, left)):
        if reference.known is None and not reference.objects and not reference.made:
            if value.known is None and not value.objects and not value.made:
                return True
            can_be = value.plain and (value.known is UNKNOWN and value.items is None)
            return None if can_be else (False if value.known is not None else None)
    if (
        len(left.objects) == 1
        and len(right.objects) == 1
        and not (left.plain or right.plain or left.made or right.made)
    ):
        return left.objects[0] is right.objects[0]
    if type(left.known) is bool and type(right.known) is bool:
        return left.known is right.known
    return None


def _identical(left: Value, right: Value) -> bool | None:
    """Return whether two objects that equal only themselves are identical; None if that is not known."""
    if any(len(value.objects) != 1 or value.plain or value.made for value in (left, right)):
        return None
    if not all(_equal_to_itself_alone(value.objects[0]) for value in (left, right)):
        return None
    return left.objects[0] is right.objects[0]

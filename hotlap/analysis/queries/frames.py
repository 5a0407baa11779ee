"""Recognizes pandas frames and columns, as far as the source tells."""

from __future__ import annotations

import ast

from hotlap.analysis.parse.terms import FRAME, UNKNOWN
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, keyword, last_name
from hotlap.analysis.queries.samples import set_to

_SERIES_METHODS = frozenset(
    "apply map astype fillna dropna replace str dt cat reset_index sort_values between clip diff shift abs round "
    "lower upper strip to_frame ewm rolling".split()
)


def has_pandas(code: Code) -> bool:
    return "pandas" in code.text


def is_frame(code: Code, node: ast.expr) -> bool:
    """Match what is certainly a frame or a column; only those have `iloc` and `iat`."""
    above = code.parent(node)
    return code.kind(node) == FRAME or (isinstance(above, ast.Attribute) and above.attr in ("iloc", "iat"))


def may_be_frame(code: Code, node: ast.expr) -> bool:
    """Match what could be a frame: nothing says that it is anything else."""
    return is_frame(code, node) or (code.kind(node) == UNKNOWN and not code.full_name(node) and has_pandas(code))


def is_series(code: Code, node: ast.expr, deep: int = 0) -> bool | None:
    """Return True for a column, False for a whole frame, and None if it may be either."""
    if isinstance(node, ast.Subscript):
        return _subscripted(code, node, deep)
    if isinstance(node, ast.Call):
        return _called(code, node, deep)
    if isinstance(node, ast.Attribute):
        if node.attr in ("str", "dt", "cat", "iloc", "loc", "T"):
            return is_series(code, node.value, deep)
        return (
            True
            if is_frame(code, node.value) and isinstance(node.value, ast.Name)
            else _by_assignment(code, node, deep)
        )
    return _by_assignment(code, node, deep)


def _subscripted(code: Code, node: ast.Subscript, deep: int) -> bool | None:
    if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return True
    if isinstance(node.slice, ast.List | ast.Compare | ast.Slice):
        return False if isinstance(node.slice, ast.List) else is_series(code, node.value, deep)
    return True if code.kind(node.slice) == "text" or _is_counted(code, node.slice) else None


def _is_counted(code: Code, node: ast.expr) -> bool:
    """Match a loop variable: `for column in columns: frame[column]`."""
    return isinstance(node, ast.Name) and any(
        isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) and loop.target.id == node.id
        for loop in code.loops(node)
    )


def _called(code: Code, node: ast.Call, deep: int) -> bool | None:
    name = code.full_name(node.func)
    if name:
        return (
            True
            if name == "pandas.Series"
            else False
            if name.startswith(("pandas.read_", "pandas.DataFrame"))
            else None
        )
    if not isinstance(node.func, ast.Attribute):
        return None
    axis = keyword(node, "axis")
    if node.func.attr == "apply" and isinstance(axis, ast.Constant) and axis.value in (1, "columns"):
        return True
    return is_series(code, node.func.value, deep) if node.func.attr in _SERIES_METHODS else None


def _by_assignment(code: Code, node: ast.expr, deep: int) -> bool | None:
    """Judge by all that the file sets it to, if that agrees."""
    if deep > 4:
        return None
    verdicts = {is_series(code, value, deep + 1) for value in set_to(code, node) if not _mentions_itself(value, node)}
    return verdicts.pop() if len(verdicts) == 1 else None


def _mentions_itself(value: ast.expr, node: ast.expr) -> bool:
    return any(isinstance(part, ast.Name) and isinstance(node, ast.Name) and part.id == node.id for part in walk(value))


def is_grouped(node: ast.expr) -> bool:
    """Match what follows a groupby, a rolling window or a resampling: its function gets many rows at once."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Call) and last_name(node.func) in (
            "groupby",
            "rolling",
            "resample",
            "expanding",
            "style",
        ):
            return True
        if isinstance(node, ast.Attribute) and node.attr == "style":
            return True
        node = node.func if isinstance(node, ast.Call) else node.value
    return False

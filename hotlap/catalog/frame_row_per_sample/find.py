"""Rows of a frame looked up one at a time while batches are made."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.terms import FRAME, NUMPY, UNKNOWN
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.frames import has_pandas
from hotlap.analysis.queries.memory import returned_by
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import is_for_test, is_kept, mentions, per_sample, set_to
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Confidence

WORDS = ("frame", "df[", ".iloc", ".loc", ".at[", ".iat[", "pandas", "pd.", "DataFrame", "Series", "get_group")
SEVERITY = "high"
ONLY_HOT = True
_REPAIR = "extract the columns once, in __init__, with frame[name].to_numpy(), and index the arrays"


def find(code: Code) -> Iterator[Found]:
    seen: set[int] = set()
    for call in _groups(code):
        seen.add(call.lineno)
        often = code.heat(call).frequency
        yield Found(call, f"`{shown(call)}` creates a new frame for {often}", _REPAIR, confidence=Confidence.MEDIUM)
    for node in code.nodes(ast.Subscript):
        assert isinstance(node, ast.Subscript)
        if node.lineno in seen or not isinstance(node.ctx, ast.Load) or not code.heat(node).hot:
            continue
        verb, confidence = _lookup(code, node)
        if not verb or is_kept(code, node):
            continue
        seen.add(node.lineno)
        often = code.heat(node).frequency
        certainty = Confidence.LOW if is_for_test(code, node) else confidence
        yield Found(node, f"`{shown(node)}` {verb} for {often}", _REPAIR, confidence=certainty)


def _lookup(code: Code, node: ast.Subscript) -> tuple[str, Confidence | None]:
    base = node.value
    if isinstance(base, ast.Attribute) and base.attr in ("iloc", "loc", "at", "iat"):
        return _by_indexer(code, node, base)
    frame = _array_of(base)
    if frame is not None:
        if code.kind(frame) != FRAME:
            return "", None
        if isinstance(frame, ast.Subscript):
            return "extracts a column from the frame", Confidence.MEDIUM
        return "converts the whole frame to an array", None
    if _is_named_frame(code, base) and isinstance(node.slice, ast.Name) and code.kind(node.slice) != "text":
        return "looks up one element of a column", Confidence.MEDIUM
    if code.kind(base) != FRAME:
        return "", None
    if isinstance(node.slice, ast.Compare | ast.BinOp) and _is_mask(node.slice):
        return "searches the whole frame", None
    if _is_element(code, node) and per_sample(code, node) and not _is_listed(code, base):
        return "looks up one element of a column", Confidence.MEDIUM
    return "", None


def _is_listed(code: Code, node: ast.expr) -> bool:
    """Recognise `list(frame.label)`, also as the result of a method in this file."""
    values = set_to(code, node)
    values = [
        result
        for value in values
        for result in ([*returned_by(code, value)] if isinstance(value, ast.Call) else []) or [value]
    ]
    return bool(values) and all(
        isinstance(value, ast.Call) and last_name(value.func) in ("list", "tolist", "to_list") for value in values
    )


def _array_of(node: ast.expr) -> ast.expr | None:
    """Return the frame of `frame.values` or `frame.to_numpy()`."""
    if isinstance(node, ast.Attribute) and node.attr == "values":
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to_numpy":
        return node.func.value
    return None


def _is_named_frame(code: Code, node: ast.expr) -> bool:
    """Recognise `self.frame["label"]` of an unknown type by the column name and the name of the frame together."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant) or code.kind(node) != UNKNOWN:
        return False
    words = last_name(node.value).lower().split("_")
    return isinstance(node.slice.value, str) and any(word in ("df", "dataframe", "frame") for word in words)


def _by_indexer(code: Code, node: ast.Subscript, base: ast.Attribute) -> tuple[str, Confidence | None]:
    kind = code.kind(base.value)
    if kind == NUMPY and base.attr == "iloc":
        kind = UNKNOWN  # arrays have no iloc: on some path it is a frame
    if kind not in (FRAME, UNKNOWN) or _is_row(code, base.value):
        return "", None
    if _is_constant(node.slice) and not (base.attr == "iloc" and _is_selected(code, base.value)):
        return "", None
    if kind == UNKNOWN and _is_of_project(code, base.attr):
        return "", None
    if kind == UNKNOWN and base.attr != "iloc" and (base.attr != "loc" or not has_pandas(code)):
        return "", None  # distributions have a `loc` of their own, arrays of jax an `at`
    if isinstance(node.slice, ast.Slice):
        return "slices rows out of a frame", Confidence.MEDIUM
    return "looks up a row of a frame", None if kind == FRAME or base.attr == "iloc" else Confidence.MEDIUM


def _is_selected(code: Code, node: ast.expr) -> bool:
    """Recognise a frame selected from another one for this sample: `rows = frame[frame.id == key]`."""
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant):
        return _is_mask(node.slice) or (isinstance(node.value, ast.Attribute) and _is_mask(node.slice))
    if isinstance(node, ast.Subscript | ast.Attribute):
        return _is_selected(code, node.value)
    function = code.function(node)
    if not isinstance(node, ast.Name) or function is None:
        return False
    values = [
        assignment.value
        for assignment in walk(function)
        if isinstance(assignment, ast.Assign) and mentions(assignment.targets[0], {node.id})
    ]
    return any(
        _is_selected(code, value) or _is_group(code, value) for value in values if not isinstance(value, ast.Name)
    )


def _is_group(code: Code, node: ast.AST) -> bool:
    """Recognise pandas calls such as `groups.get_group(key)` and `frame.query("id == @key")`."""
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and bool(node.args)
    if not named or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "get_group":
        return True
    selects = node.func.attr in ("query", "groupby", "merge")
    return selects and code.kind(node.func.value) == FRAME


def _groups(code: Code) -> Iterator[ast.Call]:
    for call in code.calls("get_group", "query", "groupby", "merge"):
        if _is_group(code, call) and per_sample(code, call) and not is_kept(code, call):
            yield call


def _is_of_project(code: Code, name: str) -> bool:
    """Tell whether a class of the project defines an indexer of that name."""
    return any(name in owner.methods for summary in code.project.files.values() for owner in summary.classes.values())


def _is_row(code: Code, node: ast.expr) -> bool:
    """Recognise the result of `frame.iloc[index]`: looking up the row is the finding, not reading its entries."""
    values = set_to(code, node)
    return bool(values) and all(
        isinstance(value, ast.Subscript)
        and isinstance(value.value, ast.Attribute)
        and value.value.attr in ("iloc", "loc")
        and not isinstance(value.slice, ast.Slice)
        and not _is_mask(value.slice)
        for value in values
    )


def _is_constant(node: ast.expr) -> bool:
    """Recognise a constant row, `frame.iloc[0]`, and a whole column, `frame.loc[:, "name"]`."""
    if isinstance(node, ast.Tuple):
        first = node.elts[0] if node.elts else node
        if isinstance(first, ast.Constant):
            return first.value is Ellipsis
        return isinstance(first, ast.Slice) and first.lower is None and first.upper is None
    return isinstance(node, ast.Constant)


def _is_mask(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitAnd | ast.BitOr) and _is_mask(node.left)
    return isinstance(node, ast.Compare)


def _is_element(code: Code, node: ast.Subscript) -> bool:
    """Recognise `frame["label"][index]`, or `self.labels[index]` of a column."""
    if isinstance(node.slice, ast.Constant | ast.List | ast.Slice | ast.Tuple) or code.kind(node.slice) in (
        FRAME,
        NUMPY,
    ):
        return False
    column = isinstance(code.parent(node), ast.Attribute)  # frame[name].max()
    return not column and code.kind(node.slice) != "text" and _varies(node.slice)


def _varies(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.BinOp | ast.Subscript | ast.Call | ast.Attribute)

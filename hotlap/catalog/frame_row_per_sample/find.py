"""Rows of a frame looked up one at a time where batches are made."""

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
ONLY_HOT = True
_REPAIR = "take the columns out once, in __init__: frame[name].to_numpy(), and index the array"


def find(code: Code) -> Iterator[Found]:
    seen: set[int] = set()
    for call in _groups(code):
        seen.add(call.lineno)
        often = code.heat(call).frequency.value
        yield Found(call, f"`{shown(call)}` makes a frame of its own {often}", _REPAIR, confidence=Confidence.MEDIUM)
    for node in code.nodes(ast.Subscript):
        assert isinstance(node, ast.Subscript)
        if node.lineno in seen or not isinstance(node.ctx, ast.Load) or not code.heat(node).hot:
            continue
        what, confidence = _looked_up(code, node)
        if not what or is_kept(code, node):
            continue
        seen.add(node.lineno)
        often = code.heat(node).frequency.value
        sure = Confidence.LOW if is_for_test(code, node) else confidence
        yield Found(node, f"`{shown(node)}` {what} {often}", _REPAIR, confidence=sure)


def _looked_up(code: Code, node: ast.Subscript) -> tuple[str, Confidence | None]:
    base = node.value
    if isinstance(base, ast.Attribute) and base.attr in ("iloc", "loc", "at", "iat"):
        return _by_indexer(code, node, base)
    whole = _array_of(base)
    if whole is not None:
        if code.kind(whole) != FRAME:
            return "", None
        if isinstance(whole, ast.Subscript):
            return "takes a column out of the frame", Confidence.MEDIUM
        return "makes an array of the whole frame", None
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
    """`list(frame.label)`, or what a method of the file makes so."""
    made = set_to(code, node)
    made = [last for one in made for last in ([*returned_by(code, one)] if isinstance(one, ast.Call) else []) or [one]]
    return bool(made) and all(
        isinstance(one, ast.Call) and last_name(one.func) in ("list", "tolist", "to_list") for one in made
    )


def _array_of(node: ast.expr) -> ast.expr | None:
    """The frame of `frame.values` and `frame.to_numpy()`."""
    if isinstance(node, ast.Attribute) and node.attr == "values":
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "to_numpy":
        return node.func.value
    return None


def _is_named_frame(code: Code, node: ast.expr) -> bool:
    """`self.frame["label"]` of something unknown: the shape of it, and what it is called, together say what it is."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant) or code.kind(node) != UNKNOWN:
        return False
    words = last_name(node.value).lower().split("_")
    return isinstance(node.slice.value, str) and any(word in ("df", "dataframe", "frame") for word in words)


def _by_indexer(code: Code, node: ast.Subscript, base: ast.Attribute) -> tuple[str, Confidence | None]:
    kind = code.kind(base.value)
    if kind == NUMPY and base.attr == "iloc":
        kind = UNKNOWN  # no array has that: it is a frame on some way here
    if kind not in (FRAME, UNKNOWN) or _is_row(code, base.value):
        return "", None
    if _is_constant(node.slice) and not (base.attr == "iloc" and _is_cut(code, base.value)):
        return "", None
    if kind == UNKNOWN and _is_of_project(code, base.attr):
        return "", None
    if kind == UNKNOWN and base.attr != "iloc" and (base.attr != "loc" or not has_pandas(code)):
        return "", None  # distributions have a `loc` of their own, arrays of jax an `at`
    if isinstance(node.slice, ast.Slice):
        return "cuts rows out of a frame", Confidence.MEDIUM
    return "looks up a row of a frame", None if kind == FRAME or base.attr == "iloc" else Confidence.MEDIUM


def _is_cut(code: Code, node: ast.expr) -> bool:
    """A frame that was searched out of another one for this sample: `rows = frame[frame.id == key]`."""
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant):
        return _is_mask(node.slice) or (isinstance(node.value, ast.Attribute) and _is_mask(node.slice))
    if isinstance(node, ast.Subscript | ast.Attribute):
        return _is_cut(code, node.value)
    function = code.function(node)
    if not isinstance(node, ast.Name) or function is None:
        return False
    made = [one.value for one in walk(function) if isinstance(one, ast.Assign) and mentions(one.targets[0], {node.id})]
    return any(_is_cut(code, one) or _is_group(code, one) for one in made if not isinstance(one, ast.Name))


def _is_group(code: Code, node: ast.AST) -> bool:
    """`groups.get_group(key)`, `frame.query("id == @key")`: pandas' own."""
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and bool(node.args)
    if not named or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "get_group":
        return True
    asked = node.func.attr in ("query", "groupby", "merge")
    return asked and code.kind(node.func.value) == FRAME


def _groups(code: Code) -> Iterator[ast.Call]:
    for call in code.calls("get_group", "query", "groupby", "merge"):
        if _is_group(code, call) and per_sample(code, call) and not is_kept(code, call):
            yield call


def _is_of_project(code: Code, name: str) -> bool:
    """A class of the project has an indexer of that name itself."""
    return any(name in one.methods for summary in code.project.files.values() for one in summary.classes.values())


def _is_row(code: Code, node: ast.expr) -> bool:
    """What `frame.iloc[index]` gave: the look-up of the row is the finding, not that of its entries."""
    made = set_to(code, node)
    return bool(made) and all(
        isinstance(one, ast.Subscript)
        and isinstance(one.value, ast.Attribute)
        and one.value.attr in ("iloc", "loc")
        and not isinstance(one.slice, ast.Slice)
        and not _is_mask(one.slice)
        for one in made
    )


def _is_constant(node: ast.expr) -> bool:
    """`frame.iloc[0]`, or `frame.loc[:, "name"]`: a column, not a row."""
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
    """`frame["label"][index]` or `self.labels[index]` where that is a column."""
    if isinstance(node.slice, ast.Constant | ast.List | ast.Slice | ast.Tuple) or code.kind(node.slice) in (
        FRAME,
        NUMPY,
    ):
        return False
    column = isinstance(code.parent(node), ast.Attribute)  # frame[name].max()
    return not column and code.kind(node.slice) != "text" and _varies(node.slice)


def _varies(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.BinOp | ast.Subscript | ast.Call | ast.Attribute)

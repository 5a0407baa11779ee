"""Needless copies of frames: of a frame that is already new, one that nobody changes, one per column, one per row."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Heat
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Definition, Repeated, keyword, last_name
from hotlap.analysis.queries.frames import is_frame, is_grouped
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import dotted, mentions, prepares
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Applicability, Confidence

WORDS = (".copy()", ".copy(deep", ".append(", "concat(")
SEVERITY = "low"
PREVIEW = True  # it found nothing in 146 repositories that nobody here knew
_NEW = frozenset(
    "drop reset_index fillna merge join rename assign set_index pivot_table "
    "pivot melt astype replace explode reindex interpolate".split()
)
_IN_PLACE = frozenset(
    "drop fillna dropna rename sort_values reset_index set_index replace drop_duplicates insert pop update sort_index "
    "interpolate ffill bfill clip mask where eval".split()
)


def find(code: Code) -> Iterator[Found]:
    for call in code.calls("copy"):
        if isinstance(call.func, ast.Attribute) and _is_frame_copy(code, call, call.func) and prepares(code, call):
            yield from _copies(code, call, call.func)
    yield from _growing_frames(code)


def _is_frame_copy(code: Code, call: ast.Call, function: ast.Attribute) -> bool:
    shallow = keyword(call, "deep")
    return is_frame(code, function.value) and not call.args and shallow is None


def _found(code: Code, node: ast.expr, message: str, repair: str, confidence: Confidence, safe: bool = False) -> Found:
    heat = code.heat(node)
    return Found(
        node, message, repair, Applicability.SAFE if safe else Applicability.DISPLAY_ONLY,
        heat=Heat(heat.frequency, Confidence.HIGH, heat.side, heat.why), confidence=confidence,
    )  # fmt: skip


def _copies(code: Code, call: ast.Call, function: ast.Attribute) -> Iterator[Found]:
    if _is_new(code, function.value):
        yield _found(
            code,
            call,
            f"`{shown(call)}` copies a frame that is already new",
            "drop .copy()",
            Confidence.HIGH,
            True,
        )
        return
    name = _name_of(code, call)
    scope = code.function(call)
    if not name or scope is None:
        return
    if _is_only_read(code, scope, call, name):
        yield _found(
            code, call, f"the copy made by `{shown(call)}` is never changed", f"use `{dotted(function.value)}` itself",
            Confidence.MEDIUM,
        )  # fmt: skip
    elif isinstance(function.value, ast.Name) and _is_replaced_everywhere(code, scope, function.value.id, name):
        yield _found(
            code, call, f"`{scope.name}` copies the whole frame, and every caller discards the old one",
            "add the columns to the frame itself, all at once with frame.assign(…)", Confidence.MEDIUM,
        )  # fmt: skip


def _is_new(code: Code, node: ast.expr) -> bool:
    """Tell whether pandas has just created the frame, so that nothing else refers to it."""
    if not isinstance(node, ast.Call) or is_grouped(node):
        return False
    if code.full_name(node.func).startswith(("pandas.read_", "pandas.concat", "pandas.merge", "pandas.DataFrame")):
        return not code.full_name(node.func).endswith("DataFrame") and keyword(node, "copy") is None
    method = isinstance(node.func, ast.Attribute) and node.func.attr in _NEW
    return method and keyword(node, "inplace") is None and keyword(node, "copy") is None


def _name_of(code: Code, call: ast.Call) -> str:
    parent = code.parent(call)
    single = isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name)
    return parent.targets[0].id if single else ""  # type: ignore[union-attr]


def _is_only_read(code: Code, scope: Definition, call: ast.Call, name: str) -> bool:
    """Tell whether the copy never leaves the function, and neither it nor the original is changed there."""
    assert isinstance(call.func, ast.Attribute)
    original = dotted(call.func.value)
    if not original or original == name:
        return False
    uses = 0
    for node in walk(scope):
        if isinstance(node, ast.Name | ast.Attribute) and dotted(node) in (name, original):
            uses += dotted(node) == name
            if not _reads(code, node, call):
                return False
    return uses > 1


def _reads(code: Code, node: ast.Name | ast.Attribute, call: ast.Call) -> bool:
    parent = code.parent(node)
    if isinstance(node.ctx, ast.Store | ast.Del):
        return isinstance(parent, ast.Assign) and parent.value is call
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.ctx, ast.Load) and not _leads_to_store(code, parent)
    if isinstance(parent, ast.Attribute):
        changed = parent.attr in _IN_PLACE and _is_in_place(code, parent)
        return isinstance(parent.ctx, ast.Load) and not changed and not _leads_to_store(code, parent)
    if isinstance(parent, ast.Call):
        return last_name(parent.func) in ("len", "print", "list", "sum", "max", "min")
    return isinstance(parent, ast.Compare | ast.BinOp)


def _is_in_place(code: Code, attribute: ast.Attribute) -> bool:
    call = code.parent(attribute)
    return (
        not isinstance(call, ast.Call)
        or keyword(call, "inplace") is not None
        or attribute.attr in ("insert", "pop", "update")
    )


def _leads_to_store(code: Code, node: ast.AST) -> bool:
    """Recognise `frame.loc[…] = …` and `frame["x"].values[0] = …`."""
    here: ast.AST | None = node
    while isinstance(here, ast.Attribute | ast.Subscript):
        if isinstance(here.ctx, ast.Store | ast.Del):
            return True
        here = code.parent(here)
    return False


def _is_replaced_everywhere(code: Code, scope: Definition, original: str, name: str) -> bool:
    """Tell whether every call, and there are several, is like `frame = add_column(frame, …)`."""
    function = code._reader_function(scope.body[0])
    returned = any(
        isinstance(node, ast.Return) and node.value is not None and dotted(node.value) == name for node in walk(scope)
    )
    if function is None or not returned or original not in function.parameters:
        return False
    calls = [call for call in code.calls(scope.name) if code.project.targets(code.term(call.func), code.path)]
    callers = code.hotness.callers.get(Reference(code.path, function.name), [])
    return len(calls) > 1 and len(callers) == len(calls) and all(_replaces(code, call) for call in calls)


def _replaces(code: Code, call: ast.Call) -> bool:
    """Tell whether the result replaces the argument, or the argument is not used again."""
    if not call.args or not isinstance(call.args[0], ast.Name):
        return bool(call.args) and isinstance(call.args[0], ast.Call)
    parent = code.parent(call)
    if isinstance(parent, ast.Return):
        return True
    return isinstance(parent, ast.Assign) and dotted(parent.targets[0]) == call.args[0].id


# frame = pd.concat([frame, row]) in a loop


def _growing_frames(code: Code) -> Iterator[Found]:
    for call in code.calls("concat", "append"):
        parent = code.parent(call)
        while isinstance(parent, ast.Attribute | ast.Call):  # pd.concat(…).reset_index(drop=True)
            parent = code.parent(parent)
        loop = next(code.loops(call), None)
        if loop is None or not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
            continue
        name = dotted(parent.targets[0])
        if not name or not _adds_to(code, call, name) or not prepares(code, call):
            continue
        if _begins_anew(loop, parent, name, _other_branch(code, parent)):
            continue
        yield _found(
            code, call, f"`{shown(call)}` copies all previous rows in every iteration of the loop",
            "collect the parts in a list and concatenate them once, after the loop", Confidence.HIGH,
        )  # fmt: skip


def _other_branch(code: Code, node: ast.stmt) -> list[ast.stmt]:
    """Return the other branch of the `if` around a statement: `if rows is None: rows = new`."""
    choice = code.parent(node)
    if not isinstance(choice, ast.If):
        return []
    return choice.orelse if node in choice.body else choice.body


def _begins_anew(loop: Repeated, parent: ast.Assign, name: str, instead: list[ast.stmt]) -> bool:
    """Tell whether another statement in the loop sets the name to a value not computed from it."""
    return any(
        isinstance(node, ast.Assign)
        and node is not parent
        and node not in instead
        and dotted(node.targets[0]) == name
        and not any(isinstance(inner, ast.Name | ast.Attribute) and dotted(inner) == name for inner in walk(node.value))
        for statement in loop.body
        for node in walk(statement)
    )


def _adds_to(code: Code, call: ast.Call, name: str) -> bool:
    if code.full_name(call.func) == "pandas.concat":
        frames = call.args[0] if call.args else keyword(call, "objs")
        return isinstance(frames, ast.List | ast.Tuple) and any(dotted(element) == name for element in frames.elts)
    appended = isinstance(call.func, ast.Attribute) and call.func.attr == "append" and dotted(call.func.value) == name
    return appended and is_frame(code, call.func.value) and not mentions(call.func, set())  # type: ignore[attr-defined]

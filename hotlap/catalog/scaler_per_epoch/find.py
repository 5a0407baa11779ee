"""A GradScaler that starts over every epoch, or every batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Side
from hotlap.analysis.frequency.hotness import LoopKind
from hotlap.analysis.parse.positions import position_of
from hotlap.analysis.parse.terms import OPTIMIZER, SCALER
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Repeated, is_constant, keyword
from hotlap.analysis.queries.invariant import is_invariant, set_by
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability, Frequency

WORDS = ("GradScaler",)


def find(code: Code) -> Iterator[Found]:
    for call in code.calls("GradScaler"):
        if code.kind(call) != SCALER or is_constant(keyword(call, "enabled"), False):
            continue
        heat = code.heat(call)
        if heat.frequency not in (Frequency.EPOCH, Frequency.BATCH) or heat.side is Side.LOAD:
            continue
        if _in_constructor(code, call) or _is_whole_training(code, call):
            continue
        hints = _hoisting(code, call)
        yield Found(
            call,
            f"the scaler is created anew {heat.frequency} and forgets the scale it has learned",
            "create it once, before training",
            Applicability.UNSAFE if hints else Applicability.DISPLAY_ONLY,
            hints=hints,
        )


def _in_constructor(code: Code, call: ast.Call) -> bool:
    function = code.function(call)
    return function is not None and function.name in ("__init__", "__post_init__", "setup")


def _is_whole_training(code: Code, call: ast.Call) -> bool:
    """Tell whether the loop or function around it is a whole training, one of several folds, seeds or trials."""
    loop = next(code.loops(call), None)
    scope: ast.AST | None = loop or code.function(call)
    if scope is None:
        return True
    if any(isinstance(node, ast.Call) and code.kind(node) == OPTIMIZER for node in walk(scope)):
        return True
    return _holds_epochs(code, scope)


def _holds_epochs(code: Code, scope: ast.AST) -> bool:
    inner = [node for node in walk(scope) if isinstance(node, Repeated) and node is not scope]
    return any(code.loop_kind(loop) is LoopKind.EPOCH for loop in inner)


def _hoisting(code: Code, call: ast.Call) -> dict[str, str]:
    """Return where the statement can go, before the outermost training loop around it, or {} if it cannot move."""
    statement = code.statement(call)
    loops = [loop for loop in code.loops(call) if code.loop_kind(loop) in (LoopKind.EPOCH, LoopKind.BATCH)]
    if not loops or not isinstance(statement, ast.Assign) or statement.value is not call:
        return {}
    outermost = loops[-1]
    if len(statement.targets) != 1 or statement not in loops[0].body or not _can_precede(code, outermost):
        return {}
    changing = set().union(*(set_by(loop) for loop in loops))
    if not all(is_invariant(argument, changing) for argument in (*call.args, *(word.value for word in call.keywords))):
        return {}
    return {"loop": position_of(outermost, code.lines)}


def _can_precede(code: Code, loop: Repeated) -> bool:
    kinds = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.With, ast.If, ast.While)
    return isinstance(code.parent(loop), kinds)

"""A line, a scalar or a row written every batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.positions import position_of
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries import counts, logs
from hotlap.analysis.queries.code import Code, Repeated
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Applicability, Confidence

WORDS = ("print(", "log(", "info(", "write(", "add_scalar", "add_histogram", "log_metric", "writerow", "add_image")
ONLY_HOT = True
_FEW = 100  # turns


def find(code: Code) -> Iterator[Found]:
    for call in logs.lines(code):
        if not code.hot(call):
            continue
        few = _is_of_few(code, call)
        hints = {} if few else _hints(code, call)
        rare = few and len(list(code.loops(call))) == 1
        yield Found(
            call,
            f"`{shown(call, 40)}` writes {code.heat(call).frequency} on the training thread",
            "write only every hundredth batch",
            Applicability.UNSAFE if hints else Applicability.DISPLAY_ONLY,
            confidence=Confidence.LOW if code.heat(call).maybes > 1 or logs.on_event(code, call) or rare else None,
            hints=hints,
        )


def _is_of_few(code: Code, call: ast.Call) -> bool:
    """Match a loop of a hundred turns or fewer, of which one in a hundred would be none."""
    loop = next(code.loops(call), None)
    known = counts.turns(code, loop) if isinstance(loop, ast.For) else None
    return known is not None and known <= _FEW


def _hints(code: Code, call: ast.Call) -> dict[str, str]:
    """Return what the repair needs, or {} if the call is not a statement of its own in a loop over batches."""
    statement = code.statement(call)
    loop = next(code.loops(call), None)
    if not isinstance(statement, ast.Expr) or statement.value is not call or not isinstance(loop, ast.For):
        return {}
    if not code.is_batch_loop(loop):
        return {}
    counter = _counter(loop)
    if counter is None and "step" in {node.id for node in walk(_scope(code, loop)) if isinstance(node, ast.Name)}:
        return {}
    return {"counter": counter or "step", "loop": "" if counter else position_of(loop, code.lines)}


def _scope(code: Code, loop: Repeated) -> ast.AST:
    return code.function(loop) or code.tree


def _counter(loop: ast.For) -> str | None:
    """Return the name of the counter that enumerate or range sets, or None."""
    call, target = loop.iter, loop.target
    while isinstance(call, ast.Call):
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name == "enumerate" and isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name):
            return target.elts[0].id
        if name in ("range", "trange") and isinstance(target, ast.Name):
            return target.id
        if not call.args:
            return None
        call = call.args[0]
    return None

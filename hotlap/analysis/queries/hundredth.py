"""Tells how to do something in every hundredth turn of a loop only: by the counter that it has, or by a new one."""

from __future__ import annotations

import ast

from hotlap.analysis.parse.positions import position_of
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries import counts
from hotlap.analysis.queries.code import Code, Repeated

_FEW = 100  # turns


def is_of_few(code: Code, node: ast.AST) -> bool:
    """Match a loop of a hundred turns or fewer, of which one in a hundred would be none."""
    loop = next(code.loops(node), None)
    known = counts.turns(code, loop) if isinstance(loop, ast.For) else None
    return known is not None and known <= _FEW


def hints(code: Code, node: ast.AST) -> dict[str, str]:
    """Return what `hotlap.analysis.edits.hundredth` needs, or {} outside of a loop over many batches."""
    loop = next(code.loops(node), None)
    if not isinstance(loop, ast.For) or not code.is_batch_loop(loop) or is_of_few(code, node):
        return {}
    counter = _counter(loop)
    if counter is None and "step" in {name.id for name in walk(_scope(code, loop)) if isinstance(name, ast.Name)}:
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
            return target.id if len(call.args) < 3 else None  # steps over rows count no turns
        if not call.args:
            return None
        call = call.args[0]
    return None

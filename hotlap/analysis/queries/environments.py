"""Finds reads that an environment needs: an agent's action must be on the host before its next step."""

from __future__ import annotations

import ast

from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name

_ACTING = frozenset("act acts action actions policy rollout".split())


def is_acting(code: Code, call: ast.Call) -> bool:
    """Match a value passed to `env.step(…)`, or returned by a function that chooses actions and does not train."""
    if any(isinstance(outer, ast.Call) and _is_step_of_world(code, outer) for outer in code.ancestors(call)):
        return True
    function = code.function(call)
    if function is None or any(code.loops(call)):
        return False
    if not _ACTING & set(function.name.lower().strip("_").split("_")) and not _is_stepped(code, call, function.name):
        return False
    calls = [inner for inner in walk(function) if isinstance(inner, ast.Call)]
    return not any(last_name(inner.func) in ("backward", "zero_grad") for inner in calls)


def _is_stepped(code: Code, call: ast.Call, name: str) -> bool:
    """Match a returned value when the function's result is passed to `env.step(…)` in the same file."""
    if not any(isinstance(outer, ast.Return) for outer in code.ancestors(call)):
        return False
    chosen = {
        target.id
        for node in code.nodes(ast.Assign)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and last_name(node.value.func) == name
        for target in walk(node.targets[0])
        if isinstance(target, ast.Name)
    }
    return any(
        _is_step_of_world(code, step) and any(getattr(given, "id", "") in chosen for given in step.args)
        for step in code.calls("step")
    )


def _is_step_of_world(code: Code, call: ast.Call) -> bool:
    """Match `observation, reward, … = env.step(action)`; optimizers and schedulers return nothing to unpack."""
    statement = code.statement(call)
    given = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple)
    return last_name(call.func) == "step" and given and len(statement.targets[0].elts) > 2  # type: ignore[attr-defined]

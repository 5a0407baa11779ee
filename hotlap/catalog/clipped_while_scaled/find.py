"""Finds gradients that are clipped between `scaler.scale(loss).backward()` and `scaler.step(optimizer)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.calls import BACKWARDS
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability

WORDS = ("clip_grad",)
ONLY_HOT = True
SEVERITY = "high"
_CLIPPING = tuple(f"torch.nn.utils.{name}" for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"))


def find(code: Code) -> Iterator[Found]:
    for call in code.calls("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"):
        if not code.full_name(call.func).startswith(_CLIPPING) or not code.hot(call):
            continue
        function = code.function(call)
        calls = [node for node in walk(function or code.tree) if isinstance(node, ast.Call)]
        calls = [node for node in calls if code.function(node) is function]
        scalers = {_scaler(node) for node in calls if node.lineno <= call.lineno} - {""}
        if len(scalers) != 1 or any(last_name(node.func) == "unscale_" for node in calls):
            continue
        (scaler,) = scalers
        stepped = {ast.unparse(node.args[0]) for node in calls if _steps(node, scaler) and node.lineno > call.lineno}
        if stepped:
            yield _found(code, call, scaler, stepped, _is_always_scaled(code, call, calls))


def _scaler(call: ast.Call) -> str:
    """Return `scaler` for `scaler.scale(loss).backward()`, or ""."""
    made = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr in BACKWARDS else None
    if not isinstance(made, ast.Call) or not isinstance(made.func, ast.Attribute) or made.func.attr != "scale":
        return ""
    return ast.unparse(made.func.value)


def _steps(call: ast.Call, scaler: str) -> bool:
    steps = isinstance(call.func, ast.Attribute) and call.func.attr == "step" and len(call.args) == 1
    return steps and ast.unparse(call.func.value) == scaler  # type: ignore[attr-defined]


def _is_always_scaled(code: Code, clip: ast.Call, calls: list[ast.Call]) -> bool:
    """Return whether every backward pass of the function is scaled wherever the gradients are clipped."""
    around = set(code.ancestors(clip))
    return all(
        _scaler(node) and all(outer in around for outer in code.ancestors(node) if isinstance(outer, ast.If))
        for node in calls
        if last_name(node.func) in BACKWARDS
    )


def _found(code: Code, call: ast.Call, scaler: str, stepped: set[str], always: bool) -> Found:
    optimizer = next(iter(stepped)) if len(stepped) == 1 else "optimizer"
    statement = code.statement(call)
    alone = always and len(stepped) == 1 and isinstance(statement, ast.Expr | ast.Assign)
    return Found(
        call,
        f"`{scaler}` has multiplied the gradients that are clipped here, so that far too little is left of them",
        f"divide them before: {scaler}.unscale_({optimizer})",
        Applicability.UNSAFE if alone else Applicability.DISPLAY_ONLY,
        hints={"unscale": f"{scaler}.unscale_({optimizer})"} if alone else {},
    )

"""Evaluation that records a graph nobody differentiates."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.model.scanned import Applicability, Confidence
from hotlap.source.code import Code, Definition
from hotlap.source.evaluation import evaluations, returns_tensors
from hotlap.source.positions import position_of
from hotlap.source.rule import Found

WORDS = ("for ", "while ")
ONLY_HOT = True


def find(code: Code) -> Iterator[Found]:
    if "set_grad_enabled(" in code.text and _is_switched(code):
        return
    for loop, in_eval_mode in evaluations(code):
        if code.under_no_grad(loop) or not code.hot(loop.body[0]):
            continue
        function = code.function(loop)
        if function is not None and _is_generator(function):
            continue
        safe = function is not None and in_eval_mode and not returns_tensors(code, function) and _is_torch_named(code)
        yield Found(
            loop,
            "this evaluation records a graph for a backward pass that never comes",
            "evaluate under torch.inference_mode()",
            Applicability.SAFE if safe else Applicability.DISPLAY_ONLY,
            code.heat(loop.body[0]),
            None if in_eval_mode else Confidence.LOW,
            {"function": position_of(function, code.lines)} if function else {},
        )


def _is_switched(code: Code) -> bool:
    """`torch.set_grad_enabled(False)` by itself, or with a mode that somebody chooses: who knows how long it holds."""
    return any(
        isinstance(code.parent(call), ast.Expr) or not (call.args and isinstance(call.args[0], ast.Constant))
        for call in code.calls("set_grad_enabled")
    )


def _is_generator(function: Definition) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))


def _is_torch_named(code: Code) -> bool:
    return any(
        isinstance(node, ast.Import) and any(one.name == "torch" and one.asname is None for one in node.names)
        for node in code.nodes(ast.Import)
    )

"""no_grad around an evaluation, where inference_mode does less."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.model.scanned import Applicability, Confidence
from hotlap.source.code import Code, Definition
from hotlap.source.evaluation import evaluations, returns_tensors
from hotlap.source.rule import Found

WORDS = ("no_grad",)
ONLY_HOT = True


def find(code: Code) -> Iterator[Found]:
    seen: set[ast.AST] = set()
    for loop, _ in evaluations(code):
        node = _no_grad_around(code, loop)
        if node is None or node in seen or not code.hot(loop.body[0]):
            continue
        seen.add(node)
        function = code.function(loop)
        safe = function is not None and not returns_tensors(code, function)
        yield Found(
            node,
            "no_grad still counts versions and views of every tensor, for an evaluation that needs neither",
            "use torch.inference_mode()",
            Applicability.SAFE if safe else Applicability.UNSAFE,
            code.heat(loop.body[0]),
            Confidence.MEDIUM,
        )


def _no_grad_around(code: Code, loop: ast.AST) -> ast.Call | None:
    """The innermost `with torch.no_grad()` or decorator around the loop."""
    for outer in code.ancestors(loop):
        if isinstance(outer, ast.With):
            for item in outer.items:
                if _is_no_grad(code, item.context_expr):
                    assert isinstance(item.context_expr, ast.Call)
                    return item.context_expr
        if isinstance(outer, Definition):
            return next(
                (one for one in outer.decorator_list if isinstance(one, ast.Call) and _is_no_grad(code, one)), None
            )
    return None


def _is_no_grad(code: Code, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and not node.args and code.full_name(node.func) == "torch.no_grad"

"""no_grad around an evaluation, where inference_mode does less."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.model.scanned import Applicability, Confidence, Frequency
from hotlap.source.code import Code, Definition, Repeated
from hotlap.source.evaluation import evaluations, returns_tensors, runs_model
from hotlap.source.hotness import LoopKind
from hotlap.source.rule import Found

WORDS = ("no_grad",)
_WHY = "no_grad still counts versions and views of every tensor, for an evaluation that needs neither"
_REPAIR = "use torch.inference_mode()"


def find(code: Code) -> Iterator[Found]:
    seen: set[ast.AST] = set()
    for loop, _ in evaluations(code):
        around = _no_grad_around(code, loop)
        node = around or _no_grad_within(code, loop)
        if node is None or node in seen or not code.hot(loop.body[0]):
            continue
        seen.add(node)
        function = code.function(loop)
        safe = around is not None and function is not None and not returns_tensors(code, function)
        yield Found(
            node,
            _WHY,
            _REPAIR,
            Applicability.SAFE if safe else Applicability.UNSAFE,
            code.heat(loop.body[0]),
            Confidence.MEDIUM,
        )
    yield from _around_calls(code)


def _around_calls(code: Code) -> Iterator[Found]:
    """`with torch.no_grad(): validate(model)`, of a function that goes over the batches; once an epoch."""
    for node in code.nodes(ast.With):
        assert isinstance(node, ast.With)
        wanted = next((item.context_expr for item in node.items if _is_no_grad(code, item.context_expr)), None)
        if wanted is None or code.heat(node).frequency is not Frequency.EPOCH or code.heat(node).rarely:
            continue
        calls = [one for statement in node.body for one in ast.walk(statement) if isinstance(one, ast.Call)]
        if any(_loops(code, one) for one in calls):
            yield Found(wanted, _WHY, _REPAIR, Applicability.UNSAFE, code.heat(node), Confidence.MEDIUM)


def _loops(code: Code, call: ast.Call) -> bool:
    """Of a function or method of the project: a loop over batches right in it."""
    if not isinstance(call.func, ast.Name | ast.Attribute):
        return False
    targets = code.project.targets(code.term(call.func), code.path)
    return any(kind >= LoopKind.BATCH_LIKELY for one in targets for kind in code.hotness.kinds.get(one, ()))


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


def _no_grad_within(code: Code, loop: Repeated) -> ast.Call | None:
    """`with torch.no_grad()` in every turn, around the call of the model."""
    for node in ast.walk(loop):
        if isinstance(node, ast.With):
            for item in node.items:
                if _is_no_grad(code, item.context_expr) and runs_model(code, node):
                    assert isinstance(item.context_expr, ast.Call)
                    return item.context_expr
    return None


def _is_no_grad(code: Code, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and not node.args and code.full_name(node.func) == "torch.no_grad"

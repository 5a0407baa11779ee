"""Gradient accumulation that steps on every k-th batch and drops the batches left at the end of an epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries import counts
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability

WORDS = (".step(",)
PREVIEW = True  # eleven of its eighteen findings in code that nobody here knew were false or arguable
ONLY_HOT = True


def find(code: Code) -> Iterator[Found]:
    for node in code.nodes(ast.If):
        assert isinstance(node, ast.If)
        loop = next(code.loops(node), None)
        if not isinstance(loop, ast.For) or not code.is_batch_loop(loop) or node not in loop.body:
            continue
        if _divides(code, node.test, loop):
            continue
        if _is_every_nth(node.test) and _steps(code, node, loop) and not _finished_later(code, loop):
            yield _found(code, node, loop)


def _is_every_nth(test: ast.expr) -> bool:
    """Accept `(i + 1) % k == 0` and `not (i + 1) % k`, and nothing else."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_modulo(test.operand)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq) and len(test.ops) == 1:
        right = test.comparators[0]
        return _is_modulo(test.left) and isinstance(right, ast.Constant) and right.value == 0
    return False


def _divides(code: Code, test: ast.expr, loop: ast.For) -> bool:
    """Tell whether the number of turns is known to be a multiple of the batches that are added up."""
    turns = counts.turns(code, loop)
    operations = [node for node in walk(test) if isinstance(node, ast.BinOp)]
    every = next((counts.number(code, node.right) for node in operations if isinstance(node.op, ast.Mod)), None)
    return turns is not None and every is not None and every > 0 and turns % every == 0


def _is_modulo(node: ast.expr) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mod):
        return False
    return not (isinstance(node.right, ast.Constant) and node.right.value == 1)


def _steps(code: Code, node: ast.If, loop: ast.For) -> bool:
    """Tell whether every batch adds to the gradients, and the optimizer steps and clears them in this branch only."""
    inside = _names(node.body)
    rest = [statement for statement in loop.body if statement is not node]
    around = _names(rest)
    return (
        "step" in inside
        and "zero_grad" in inside
        and ("backward" in around or _differentiates(code, rest))
        and not inside & {"backward"}
        and ("zero_grad" not in around)
    )


def _differentiates(code: Code, body: list[ast.stmt]) -> bool:
    """Tell whether a function of the project called here runs the backward pass but does not step the optimizer."""
    calls = [node for statement in body for node in walk(statement) if isinstance(node, ast.Call)]
    targets = [target for call in calls for target in code.project.targets(code.asked(call.func), code.path)]
    return any(
        target in code.hotness.steppers
        and code.project.function(target).steps
        and not code.project.function(target).updates
        for target in targets
    )


def _names(body: list[ast.stmt]) -> set[str]:
    return {last_name(node.func) for statement in body for node in walk(statement) if isinstance(node, ast.Call)}


def _finished_later(code: Code, loop: ast.For) -> bool:
    """Tell whether a step after the loop uses the remaining gradients."""
    block = code.block(loop)
    return "step" in _names(
        [statement for statement in block[block.index(loop) + 1 :] if not isinstance(statement, ast.For)]
    ) and any(
        isinstance(statement, ast.If | ast.Expr)
        and _names([statement]) & {"step"}
        and "zero_grad" in _names(block[block.index(loop) + 1 :])
        for statement in block[block.index(loop) + 1 :]
    )


def _found(code: Code, node: ast.If, loop: ast.For) -> Found:
    count, total = _counter(node.test), _length(loop)
    fixable = bool(count and total) and count == f"{_enumerated(code, loop)} + 1"
    return Found(
        node.test,
        "the gradients of the last batches of an epoch are never used, or leak into the next epoch",
        f"also step on the last batch: add `or {count} == len({total})`" if fixable else "also step on the last batch",
        Applicability.UNSAFE if fixable else Applicability.DISPLAY_ONLY,
        code.heat(node),
        hints={"also": f"{count} == len({total})"} if fixable else {},
    )


def _counter(test: ast.expr) -> str:
    """Return the number of batches so far as source text, `i + 1`, or "" if it is counted in another way."""
    modulo = test.operand if isinstance(test, ast.UnaryOp) else test.left if isinstance(test, ast.Compare) else test
    assert isinstance(modulo, ast.BinOp)
    left = modulo.left
    if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add) and isinstance(left.right, ast.Constant):
        return ast.unparse(left) if left.right.value == 1 else ""
    return f"{ast.unparse(left)} + 1" if isinstance(left, ast.Name) else ""


def _enumerated(code: Code, loop: ast.For) -> str:
    """Return the name that `enumerate` counts the batches of this loop with, unless the loop sets it otherwise."""
    first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else None
    name = first.id if isinstance(first, ast.Name) else ""
    set_again = any(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name
        for statement in loop.body
        for node in walk(statement)
    )
    return "" if set_again else name


def _length(loop: ast.For) -> str:
    """Return the loader whose length is the number of batches, as source text, or ""."""
    node = loop.iter
    if not (isinstance(node, ast.Call) and last_name(node.func) == "enumerate" and len(node.args) == 1):
        return ""
    node = node.args[0]
    if isinstance(node, ast.Call) and last_name(node.func) == "tqdm" and node.args:
        node = node.args[0]
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""

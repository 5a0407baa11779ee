"""Gradient accumulation that steps on every k-th batch and forgets what is left at the end."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability

WORDS = (".step(",)
ONLY_HOT = True


def find(code: Code) -> Iterator[Found]:
    for node in code.nodes(ast.If):
        assert isinstance(node, ast.If)
        loop = next(code.loops(node), None)
        if not isinstance(loop, ast.For) or not code.is_batch_loop(loop) or node not in loop.body:
            continue
        if _is_every_nth(node.test) and _steps(code, node, loop) and not _finished_later(code, loop):
            yield _found(code, node, loop)


def _is_every_nth(test: ast.expr) -> bool:
    """`(i + 1) % k == 0` or `not (i + 1) % k`, and nothing besides."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_modulo(test.operand)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq) and len(test.ops) == 1:
        right = test.comparators[0]
        return _is_modulo(test.left) and isinstance(right, ast.Constant) and right.value == 0
    return False


def _is_modulo(node: ast.expr) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mod):
        return False
    return not (isinstance(node.right, ast.Constant) and node.right.value == 1)


def _steps(code: Code, node: ast.If, loop: ast.For) -> bool:
    """The gradients of all batches gather; here the optimizer steps, and they are cleared."""
    inside = _names(node.body)
    rest = [one for one in loop.body if one is not node]
    around = _names(rest)
    return (
        "step" in inside
        and "zero_grad" in inside
        and ("backward" in around or _differentiates(code, rest))
        and not inside & {"backward"}
        and ("zero_grad" not in around)
    )


def _differentiates(code: Code, body: list[ast.stmt]) -> bool:
    """A function of the project that is called there makes the backward pass, and no step of its own."""
    calls = [one for part in body for one in walk(part) if isinstance(one, ast.Call)]
    targets = [target for one in calls for target in code.project.targets(code.asked(one.func), code.path)]
    return any(
        one in code.hotness.steppers and code.project.function(one).steps and not code.project.function(one).updates
        for one in targets
    )


def _names(body: list[ast.stmt]) -> set[str]:
    return {last_name(one.func) for part in body for one in walk(part) if isinstance(one, ast.Call)}


def _finished_later(code: Code, loop: ast.For) -> bool:
    """A step after the loop takes what is left."""
    block = code.block(loop)
    return "step" in _names([one for one in block[block.index(loop) + 1 :] if not isinstance(one, ast.For)]) and any(
        isinstance(one, ast.If | ast.Expr)
        and _names([one]) & {"step"}
        and "zero_grad" in _names(block[block.index(loop) + 1 :])
        for one in block[block.index(loop) + 1 :]
    )


def _found(code: Code, node: ast.If, loop: ast.For) -> Found:
    count, total = _counter(node.test), _length(loop)
    fixable = bool(count and total)
    return Found(
        node.test,
        "the gradients of the last batches of an epoch are never used, or leak into the next epoch",
        f"step on the last batch too: or {count} == len({total})" if fixable else "step on the last batch too",
        Applicability.UNSAFE if fixable else Applicability.DISPLAY_ONLY,
        code.heat(node),
        hints={"also": f"{count} == len({total})"} if fixable else {},
    )


def _counter(test: ast.expr) -> str:
    """`i + 1`, where that is what is divided."""
    modulo = test.operand if isinstance(test, ast.UnaryOp) else test.left if isinstance(test, ast.Compare) else test
    assert isinstance(modulo, ast.BinOp)
    left = modulo.left
    if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add) and isinstance(left.right, ast.Constant):
        return ast.unparse(left) if left.right.value == 1 else ""
    return f"{ast.unparse(left)} + 1" if isinstance(left, ast.Name) else ""


def _length(loop: ast.For) -> str:
    """What can be asked how many batches there are."""
    node = loop.iter
    if not (isinstance(node, ast.Call) and last_name(node.func) == "enumerate" and len(node.args) == 1):
        return ""
    node = node.args[0]
    if isinstance(node, ast.Call) and last_name(node.func) == "tqdm" and node.args:
        node = node.args[0]
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""

"""Losses and outputs that are kept from batch to batch, with the graph that made them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Side
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Definition, Repeated, last_name
from hotlap.analysis.queries.graphs import Graphs, differentiated, is_tensor
from hotlap.analysis.queries.invariant import set_by
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Applicability, Confidence

WORDS = (".append(", "+=", "+ ", "torch.cat", ".extend(", ".update(")
ONLY_HOT = True
_JOINED = ("torch.cat", "torch.stack", "torch.concat", "torch.vstack", "torch.hstack")


def find(code: Code) -> Iterator[Found]:
    for value, receiver in _kept(code):
        loop = _lives_through(code, value, receiver) if code.hot(value) else None
        if loop is None:
            continue
        graphs = Graphs(code, loop)
        if graphs.carries(value) and not _differentiated(code, loop, receiver, graphs):
            yield _found(code, value, receiver, graphs)


def _kept(code: Code) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is put into something, and that something."""
    for call in code.calls("append", "extend"):
        if isinstance(call.func, ast.Attribute) and len(call.args) == 1:
            given = call.args[0]
            parts = given.elts if isinstance(given, ast.Tuple | ast.List) else [given]
            for part in parts:
                yield part, call.func.value
    for node in code.nodes(ast.AugAssign):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            yield node.value, node.target
    for node in code.nodes(ast.Assign):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            yield from _joined(code, node.targets[0], node.value)


def _joined(code: Code, target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """`total = total + loss`, `outputs = torch.cat([outputs, output])`."""
    name = ast.unparse(target)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        parts = [value.left, value.right]
    elif isinstance(value, ast.Call) and code.full_name(value.func) in _JOINED and value.args:
        parts = list(value.args[0].elts) if isinstance(value.args[0], ast.Tuple | ast.List) else []
    else:
        return
    if len(parts) == 2 and name in (ast.unparse(parts[0]), ast.unparse(parts[1])):
        yield (parts[1] if ast.unparse(parts[0]) == name else parts[0]), target


def _lives_through(code: Code, value: ast.expr, receiver: ast.expr) -> Repeated | Definition | None:
    """The loop over batches, or the method called every batch, that what is kept outlives."""
    while isinstance(receiver, ast.Subscript):
        receiver = receiver.value
    name = ast.unparse(receiver)
    for loop in code.loops(value):
        if name in set_by_assignment(loop, receiver):
            return None  # starts anew in each turn
        if code.is_batch_loop(loop):
            return loop
    function = code.function(value)
    if function is None or not isinstance(receiver, ast.Attribute) or not name.startswith("self."):
        return None
    if name in {ast.unparse(target) for target in _plain_targets(function)}:
        return None
    return function


def set_by_assignment(loop: Repeated, receiver: ast.expr) -> set[str]:
    """Names that a turn of the loop sets to something that does not hold what they held."""
    name = ast.unparse(receiver)
    fresh = {ast.unparse(target) for target in _plain_targets(loop)}
    given = set_by(loop) if isinstance(loop, ast.For) and name in _names(loop.target) else set()
    return fresh | (given & {name})


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in walk(node) if isinstance(part, ast.Name)}


def _plain_targets(scope: ast.AST) -> Iterator[ast.expr]:
    for node in walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for element in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if ast.unparse(element) not in ast.unparse(node.value):
                        yield element


def _differentiated(code: Code, loop: Repeated | Definition, receiver: ast.expr, graphs: Graphs) -> bool:
    """Somebody needs the graph: a backward pass of what was kept or, where the loop makes none, one that may follow."""
    name = last_name(receiver)
    if name and name in graphs.differentiated:
        return True
    if graphs.trains:
        return False
    scope = code.function(loop) if isinstance(loop, Repeated) else None
    around: ast.AST = scope or code.tree
    return any(
        isinstance(node, ast.Call) and last_name(node.func) in ("backward", "manual_backward", "grad")
        for node in walk(around)
    ) or (_returned(around, name) and not _only_evaluates(code, loop))


def _only_evaluates(code: Code, loop: Repeated | Definition) -> bool:
    """What is returned by an evaluation, with the model in its mode, nobody differentiates."""
    return isinstance(loop, Repeated) and code.put_to_eval(loop) and code.is_batch_loop(loop)


def _returned(scope: ast.AST, name: str) -> bool:
    """Given to somebody who may differentiate it."""
    return any(
        isinstance(node, ast.Return) and node.value is not None and name in _names(node.value) for node in walk(scope)
    )


def _found(code: Code, value: ast.expr, receiver: ast.expr, graphs: Graphs) -> Found:
    often = code.heat(value).frequency.value
    return Found(
        value,
        f"`{shown(receiver, 30)}` keeps `{shown(value, 40)}` with its graph, {often}: memory grows",
        "keep the value without the graph: .detach()",
        _applicability(code, value, graphs),
        confidence=None if graphs.trains or code.heat(value).side is Side.EVALUATE else Confidence.MEDIUM,
    )


def _applicability(code: Code, value: ast.expr, graphs: Graphs) -> Applicability:
    """Safe for what was differentiated, or computed of it; a model's output may be an object without `detach`."""
    if graphs.trains and graphs.differentiated & _names(value) and _is_one_tensor(code, value):
        return Applicability.SAFE
    return Applicability.UNSAFE if _is_one_tensor(code, value) else Applicability.DISPLAY_ONLY


def _is_one_tensor(code: Code, value: ast.expr) -> bool:
    return not isinstance(value, ast.Dict | ast.Tuple | ast.List) and is_tensor(code, value, differentiated(code))

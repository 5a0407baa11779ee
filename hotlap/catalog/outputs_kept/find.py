"""Losses and outputs kept from batch to batch together with the graph that computed them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

from hotlap.analysis.frequency.heat import Side
from hotlap.analysis.parse.tree import unparsed, walk
from hotlap.analysis.queries.code import Code, Definition, Repeated, last_name
from hotlap.analysis.queries.graphs import Graphs, differentiated, is_tensor
from hotlap.analysis.queries.invariant import set_by
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Applicability, Confidence

WORDS = (".append(", "+=", "+ ", "torch.cat", ".extend(", ".update(")
SEVERITY = "low"
ONLY_HOT = True
_JOINED = ("torch.cat", "torch.stack", "torch.concat", "torch.vstack", "torch.hstack")


def find(code: Code) -> Iterator[Found]:
    for value, receiver in _retained(code):
        loop = _outlived(code, value, receiver) if code.hot(value) else None
        if loop is None:
            continue
        graphs = Graphs(code, loop)
        if graphs.carries(value) and not _needs_graph(code, loop, receiver, graphs):
            yield _found(code, value, receiver, graphs)


def _retained(code: Code) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each value that is appended or added to something, with what it is added to."""
    for call in code.calls("append", "extend"):
        if isinstance(call.func, ast.Attribute) and len(call.args) == 1:
            appended = call.args[0]
            elements = appended.elts if isinstance(appended, ast.Tuple | ast.List) else [appended]
            for element in elements:
                yield element, call.func.value
    for node in code.nodes(ast.AugAssign):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            yield node.value, node.target
    for node in code.nodes(ast.Assign):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            yield from _accumulated(code, node.targets[0], node.value)


def _accumulated(code: Code, target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the values of `total = total + loss` and `outputs = torch.cat([outputs, output])`."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        operands = [value.left, value.right]
    elif isinstance(value, ast.Call) and code.full_name(value.func) in _JOINED and value.args:
        operands = list(value.args[0].elts) if isinstance(value.args[0], ast.Tuple | ast.List) else []
    else:
        return
    name = unparsed(target)
    if len(operands) == 2 and name in (unparsed(operands[0]), unparsed(operands[1])):
        yield (operands[1] if unparsed(operands[0]) == name else operands[0]), target


def _outlived(code: Code, value: ast.expr, receiver: ast.expr) -> Repeated | Definition | None:
    """Return the loop over batches, or the method called every batch, that the value outlives."""
    while isinstance(receiver, ast.Subscript):
        receiver = receiver.value
    name = unparsed(receiver)
    loops = list(code.loops(value))
    for number, loop in enumerate(loops):
        if any(map(code.is_batch_loop, loops[number:])) and _is_fresh(loop, name):
            return None  # it is set anew in each iteration
    batch = next(filter(code.is_batch_loop, loops), None)
    if batch is not None:
        return batch
    function = code.function(value)
    if function is None or not isinstance(receiver, ast.Attribute) or not name.startswith("self."):
        return None
    if _is_set_anew(function, name):
        return None
    return function


def _is_fresh(loop: Repeated, name: str) -> bool:
    """Tell whether an iteration sets the receiver to a value without the previous one in it."""
    if isinstance(loop, ast.For) and name in _names(loop.target) and name in set_by(loop):
        return True
    return _is_set_anew(loop, name)


def _names(node: ast.AST) -> set[str]:
    return {name.id for name in walk(node) if isinstance(name, ast.Name)}


def _is_set_anew(scope: ast.AST, name: str) -> bool:
    return any(name not in ast.unparse(value) for value in _assigned(scope).get(name, ()))


@lru_cache(maxsize=8)
def _assigned(scope: ast.AST) -> dict[str, list[ast.expr]]:
    """Return the values that a scope assigns, by the text of their targets."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for node in walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for element in target.elts if isinstance(target, ast.Tuple) else [target]:
                    found[unparsed(element)].append(node.value)
    return found


def _needs_graph(code: Code, loop: Repeated | Definition, receiver: ast.expr, graphs: Graphs) -> bool:
    """Tell whether a backward pass needs the graph: of the value or, if the loop runs none, one that may follow."""
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
    """Recognise an evaluation with the model in eval mode: nobody differentiates what it returns. What a method of a
    module returns may be part of a loss, whatever mode it switches to."""
    return (
        isinstance(loop, Repeated) and code.put_to_eval(loop) and code.is_batch_loop(loop) and not code.in_module(loop)
    )


def _returned(scope: ast.AST, name: str) -> bool:
    """Tell whether the name is returned to a caller who may differentiate it."""
    return any(
        isinstance(node, ast.Return) and node.value is not None and name in _names(node.value) for node in walk(scope)
    )


def _found(code: Code, value: ast.expr, receiver: ast.expr, graphs: Graphs) -> Found:
    often = code.heat(value).frequency
    return Found(
        value,
        f"`{shown(receiver, 30)}` keeps `{shown(value, 40)}` with its graph {often}: memory grows",
        "keep the value without its graph: .detach()",
        _applicability(code, value, graphs),
        confidence=None if graphs.trains or code.heat(value).side is Side.EVALUATE else Confidence.MEDIUM,
    )


def _applicability(code: Code, value: ast.expr, graphs: Graphs) -> Applicability:
    """Return safe for what was differentiated; a model's output may be an object without `detach`."""
    if graphs.trains and graphs.differentiated & _names(value) and _is_one_tensor(code, value):
        return Applicability.SAFE
    return Applicability.UNSAFE if _is_one_tensor(code, value) else Applicability.DISPLAY_ONLY


def _is_one_tensor(code: Code, value: ast.expr) -> bool:
    return not isinstance(value, ast.Dict | ast.Tuple | ast.List) and is_tensor(code, value, differentiated(code))

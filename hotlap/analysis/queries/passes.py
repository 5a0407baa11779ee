"""Finds the passes over a loader that a program makes every epoch: loops, and calls of functions that loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from hotlap.analysis.frequency import modes
from hotlap.analysis.frequency.heat import Side
from hotlap.analysis.frequency.hotness import LoopKind
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.modules import argument
from hotlap.analysis.parse.facts import Function
from hotlap.analysis.parse.statements import is_static
from hotlap.analysis.parse.terms import LOADERS, UNKNOWN, Term
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.evaluation import trains
from hotlap.records.scan_finding import Frequency

_AROUND = frozenset(("enumerate", "tqdm", "iter", "track", "trange", "progress_bar", "prefetch"))


@dataclass(frozen=True)
class Pass:
    node: ast.For | ast.Call | ast.ListComp | ast.GeneratorExp
    loader: str  # its source text where the pass is made
    trains: bool
    no_grad: bool
    function: str  # the function called; "" for a loop right there


def passes(code: Code) -> Iterator[tuple[ast.AST, list[Pass]]]:
    """Yield each epoch loop, or function called every epoch, with the passes that an epoch makes in it, in order."""
    found: dict[ast.AST, list[Pass]] = {}
    for node in (*code.nodes(ast.For, ast.ListComp, ast.GeneratorExp), *code.all_calls()):
        assert isinstance(node, ast.For | ast.Call | ast.ListComp | ast.GeneratorExp)
        heat = code.heat(node)
        if heat.frequency is not Frequency.EPOCH or heat.rarely or heat.maybes or heat.side is Side.LOAD:
            continue
        for found_pass in _of_node(code, node):
            found.setdefault(_scope(code, node), []).append(found_pass)
    for scope, made in found.items():
        yield scope, sorted(made, key=lambda entry: (entry.node.lineno, entry.node.col_offset))


def _scope(code: Code, node: ast.AST) -> ast.AST:
    return next(code.loops(node), None) or code.function(node) or code.tree


def _of_node(code: Code, node: ast.For | ast.Call | ast.ListComp | ast.GeneratorExp) -> Iterator[Pass]:
    if isinstance(node, ast.For):
        yield from _of_loop(code, node)
    elif isinstance(node, ast.Call):
        yield from _of_call(code, node)
    elif code.goes_over_batches(node):
        quiet = code.is_quiet(node)
        trained = not quiet and code.heat(node.elt).side is Side.TRAIN
        yield Pass(node, ast.unparse(_stripped(node.generators[0].iter)), trained, quiet, "")


def _of_loop(code: Code, loop: ast.For) -> Iterator[Pass]:
    if code.is_batch_loop(loop):
        over = _loader(code, loop)
        yield Pass(loop, over, trains(code, loop), code.under_no_grad(loop), "")


def _loader(code: Code, loop: ast.For) -> str:
    """Return the loader's source text; a name that is set several times gets the line that set it last."""
    over = _stripped(loop.iter)
    scope = code.function(loop) or code.tree
    if not isinstance(over, ast.Name):
        return ast.unparse(over)
    lines = [
        node.lineno
        for node in walk(scope)
        if isinstance(node, ast.Name) and node.id == over.id and isinstance(node.ctx, ast.Store)
    ]
    last = max((line for line in lines if line <= loop.lineno), default=0)
    return over.id if len(lines) < 2 else f"{over.id} of line {last}"


def _stripped(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Call) and last_name(node.func) in _AROUND and node.args:
        node = node.args[0]
    return node


def _of_call(code: Code, call: ast.Call) -> Iterator[Pass]:
    targets = code.project.targets(code.term(call.func), code.path)
    if len(targets) != 1:
        return
    reference = targets[0]
    function = code.project.function(reference)
    for number, kind in enumerate(code.hotness.kinds.get(reference, ())):
        if kind < LoopKind.BATCH_LIKELY:
            continue
        over = _given(call, function, _plain(function.loops[number].over))
        if over:
            heat = code.hotness.at(reference, (number,))
            trained = heat is None or heat.side is Side.TRAIN
            yield Pass(
                call, over, trained, _records_nothing(code, reference, number), f"{reference.path}:{reference.name}"
            )
            return
    through = _through(code, reference)
    over = _given(call, function, through) if through else ""
    if over and code.is_quiet(call):  # a helper of a helper, whose side is unknown
        yield Pass(call, over, False, True, f"{reference.path}:{reference.name}")


def _through(code: Code, reference: Reference, deep: int = 0) -> Term:
    """Return the argument that a function called here loops over by batches: `compute(metrics, model, loader)`."""
    function = code.project.function(reference)
    for call in function.calls:
        targets = code.project.targets(call.callee, reference.path)
        if len(targets) != 1 or targets[0] == reference:
            continue
        inner = code.project.function(targets[0])
        kinds = code.hotness.kinds.get(targets[0], ())
        gone = [
            _plain(loop.over) for loop, kind in zip(inner.loops, kinds, strict=False) if kind >= LoopKind.BATCH_LIKELY
        ] or ([_through(code, targets[0], deep + 1)] if deep < 2 else [])
        shift = 1 if inner.owner and not is_static(inner) else 0
        for over in gone:
            if not isinstance(over, tuple) or over[0] != "param" or over[1] != inner.name:
                continue
            given = argument(call, over[2] - shift, inner.parameters[over[2]])
            if isinstance(given, tuple) and given[0] == "param" and given[1] == function.name:
                return given
    return UNKNOWN


def _records_nothing(code: Code, reference: Reference, number: int) -> bool:
    function = code.project.function(reference)
    quiet = function.loops[number].no_grad or modes.under_no_grad(code.project, code.hotness.callers, reference)
    return quiet or (function.evaluates and function.loops[number].parent < 0)


def _plain(term: Term) -> Term:
    while isinstance(term, tuple) and term[0] in ("enumerated", "list") and isinstance(term[1], tuple):
        term = term[1]
    return term


def _given(call: ast.Call, function: Function, over: Term) -> str:
    """Return the loader's source text at the caller, or "" if it is unknown."""
    if over in LOADERS:
        over = _annotated(function)
    if not isinstance(over, tuple):
        return ""
    if over[0] == "attr" and isinstance(over[1], tuple) and over[1][0] == "self":
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        return f"{ast.unparse(receiver)}.{over[2]}" if isinstance(receiver, ast.Name) else ""
    if over[0] != "param" or over[1] != function.name:
        return ""
    name = function.parameters[over[2]]
    given = next((word.value for word in call.keywords if word.arg == name), None)
    number = over[2] - (1 if function.owner and isinstance(call.func, ast.Attribute) else 0)
    if (
        given is None
        and 0 <= number < len(call.args)
        and not any(isinstance(value, ast.Starred) for value in call.args)
    ):
        given = call.args[number]
    return ast.unparse(_stripped(given)) if given is not None else ""


def _annotated(function: Function) -> Term:
    """Return the only parameter annotated as a loader."""
    found = [number for number, annotation in enumerate(function.annotations) if annotation in LOADERS]
    return ("param", function.name, found[0]) if len(found) == 1 else UNKNOWN


def other_arguments(loader_pass: Pass) -> set[str]:
    """Return the arguments of a pass besides the loader."""
    if not isinstance(loader_pass.node, ast.Call):
        return set()
    given = [*loader_pass.node.args, *(word.value for word in loader_pass.node.keywords)]
    return {ast.unparse(value) for value in given} - {loader_pass.loader}

"""The state of a recurrent net carried from one batch to the next, although the batches are shuffled."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.terms import MODULE
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Repeated, is_constant, last_name
from hotlap.analysis.queries.loaders import loader, loaders, made_at
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import dotted
from hotlap.records.scan_finding import Confidence

WORDS = ("detach", "repackage", ".data", "LSTM", "GRU", "RNN", "hidden", "state")
ONLY_HOT = True


def find(code: Code) -> Iterator[Found]:
    for loop in code.nodes(ast.For):
        assert isinstance(loop, ast.For)
        if not code.is_batch_loop(loop):
            continue
        shuffled = _shuffled(code, loop)
        if shuffled is None:
            continue
        for call, name in _carrying(code, loop):
            yield Found(
                call,
                f"`{name}` is carried from batch to batch, but the loader shuffles: it belongs to other sequences",
                "start every batch with a zero state (give the module none), or do not shuffle",
                confidence=shuffled,
            )
            break


def _carrying(code: Code, loop: Repeated) -> Iterator[tuple[ast.Call, str]]:
    """`out, state = net(x, state)` with a state that was made before the loop."""
    for node in walk(loop):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        call = node.value
        if code.callee_kind(call) != MODULE and not _may_be_module(code, call):
            continue
        given = {dotted(one) for part in call.args[1:] for one in _elements(part)} - {""}
        given |= {dotted(one) for word in call.keywords for one in _elements(word.value)} - {""}
        got = {
            dotted(one) for target in node.targets for one in walk(target) if isinstance(one, ast.Name | ast.Attribute)
        }
        for name in sorted(given & got):
            if not _is_reset(code, loop, node, name, given):
                yield call, name


def _elements(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def _may_be_module(code: Code, call: ast.Call) -> bool:
    """An argument of the function that is called with what the loop gives."""
    term = code.term(call.func)
    return not term and isinstance(call.func, ast.Name | ast.Attribute) and not code.full_name(call.func)


def _is_reset(code: Code, loop: Repeated, step: ast.Assign, name: str, given: set[str]) -> bool:
    """Set to something else in the loop: not to its own detached self."""
    for node in walk(loop):
        if node is step or not isinstance(node, ast.Assign):
            continue
        targets = {dotted(one) for target in node.targets for one in _elements(target)}
        if name in targets and not _is_detached(node.value, given):
            return True
    return isinstance(loop, ast.For) and any(isinstance(one, ast.Name) and one.id == name for one in walk(loop.target))


def _is_detached(value: ast.expr, given: set[str]) -> bool:
    """Made of the state itself: `state.detach()`, `tuple(each.data for each in state)`, `repackage(state)`."""
    return any(isinstance(one, ast.Name | ast.Attribute) and dotted(one) in given for one in walk(value))


def _shuffled(code: Code, loop: ast.For) -> Confidence | None:
    """How sure it is that the loader shuffles; None where it does not."""
    made = made_at(code, loop.iter)
    if made is not None:
        return Confidence.HIGH if _shuffles(code, made) else None
    passed = _passed(code, loop.iter)
    if passed:
        return Confidence.HIGH if all(_shuffles(code, one) for one in passed) else None
    every = [one.call for one in loaders(code)]
    return Confidence.MEDIUM if every and all(_shuffles(code, one) for one in every) else None


def _shuffles(code: Code, call: ast.Call) -> bool:
    settings = loader(code, call).settings
    sampler = settings.get("sampler")
    random = isinstance(sampler, ast.Call) and "Random" in last_name(sampler.func)
    return is_constant(settings.get("shuffle"), True) or random


def _passed(code: Code, iterable: ast.expr) -> list[ast.Call]:
    """The loaders that callers in the file hand to the function as this argument."""
    while isinstance(iterable, ast.Call) and iterable.args:
        iterable = iterable.args[0]
    function = code.function(iterable)
    if not isinstance(iterable, ast.Name) or function is None:
        return []
    names = [one.arg for one in function.args.args]
    if iterable.id not in names:
        return []
    place = names.index(iterable.id) - (names[0] == "self")
    found = []
    for call in code.calls(function.name):
        given = next((word.value for word in call.keywords if word.arg == iterable.id), None)
        given = given or (call.args[place] if place < len(call.args) else None)
        made = made_at(code, given) if given is not None else None
        if made is not None:
            found.append(made)
    return found

"""The state of a recurrent network carried from one batch to the next, although the batches are shuffled."""

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
PREVIEW = True  # it found nothing in 146 repositories that nobody here knew
ONLY_HOT = True


def find(code: Code) -> Iterator[Found]:
    for loop in code.nodes(ast.For):
        assert isinstance(loop, ast.For)
        if not code.is_batch_loop(loop):
            continue
        shuffled = _shuffled(code, loop)
        if shuffled is None:
            continue
        for call, name in _carried_states(code, loop):
            yield Found(
                call,
                f"`{name}` is carried from batch to batch, but the loader shuffles, so it belongs to other sequences",
                "start every batch with a zero state (pass the module no state), or do not shuffle",
                confidence=shuffled,
            )
            break


def _carried_states(code: Code, loop: Repeated) -> Iterator[tuple[ast.Call, str]]:
    """Yield calls such as `out, state = net(x, state)` whose state was created before the loop, with its name."""
    for node in walk(loop):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        call = node.value
        if code.callee_kind(call) != MODULE and not _may_be_module(code, call):
            continue
        passed = {dotted(element) for argument in call.args[1:] for element in _elements(argument)} - {""}
        passed |= {dotted(element) for word in call.keywords for element in _elements(word.value)} - {""}
        returned = {
            dotted(inner)
            for target in node.targets
            for inner in walk(target)
            if isinstance(inner, ast.Name | ast.Attribute)
        }
        for name in sorted(passed & returned):
            if not _is_reset(code, loop, node, name, passed):
                yield call, name


def _elements(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def _may_be_module(code: Code, call: ast.Call) -> bool:
    """Tell whether an unknown callee may be a module, for example a parameter of the function."""
    term = code.term(call.func)
    return not term and isinstance(call.func, ast.Name | ast.Attribute) and not code.full_name(call.func)


def _is_reset(code: Code, loop: Repeated, step: ast.Assign, name: str, passed: set[str]) -> bool:
    """Tell whether the loop sets the state to something other than its own detached value."""
    for node in walk(loop):
        if node is step or not isinstance(node, ast.Assign):
            continue
        targets = {dotted(element) for target in node.targets for element in _elements(target)}
        if name in targets and not _is_detached(node.value, passed):
            return True
    return isinstance(loop, ast.For) and any(
        isinstance(target, ast.Name) and target.id == name for target in walk(loop.target)
    )


def _is_detached(value: ast.expr, passed: set[str]) -> bool:
    """Recognise values made from the state: `state.detach()`, `tuple(s.data for s in state)`, `repackage(state)`."""
    return any(isinstance(node, ast.Name | ast.Attribute) and dotted(node) in passed for node in walk(value))


def _shuffled(code: Code, loop: ast.For) -> Confidence | None:
    """Return how certain it is that the loader shuffles, or None if it does not."""
    loader_call = made_at(code, loop.iter)
    if loader_call is not None:
        return Confidence.HIGH if _shuffles(code, loader_call) else None
    passed = _passed_loaders(code, loop.iter)
    if passed:
        return Confidence.HIGH if all(_shuffles(code, call) for call in passed) else None
    calls = [known.call for known in loaders(code)]
    return Confidence.MEDIUM if calls and all(_shuffles(code, call) for call in calls) else None


def _shuffles(code: Code, call: ast.Call) -> bool:
    settings = loader(code, call).settings
    sampler = settings.get("sampler")
    random = isinstance(sampler, ast.Call) and "Random" in last_name(sampler.func)
    return is_constant(settings.get("shuffle"), True) or random


def _passed_loaders(code: Code, iterable: ast.expr) -> list[ast.Call]:
    """Return the loaders that callers in this file pass to the function as this argument."""
    while isinstance(iterable, ast.Call) and iterable.args:
        iterable = iterable.args[0]
    function = code.function(iterable)
    if not isinstance(iterable, ast.Name) or function is None:
        return []
    names = [parameter.arg for parameter in function.args.args]
    if iterable.id not in names:
        return []
    position = names.index(iterable.id) - (names[0] == "self")
    found = []
    for call in code.calls(function.name):
        argument = next((word.value for word in call.keywords if word.arg == iterable.id), None)
        argument = argument or (call.args[position] if position < len(call.args) else None)
        loader_call = made_at(code, argument) if argument is not None else None
        if loader_call is not None:
            found.append(loader_call)
    return found

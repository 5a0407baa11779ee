"""Finds loops that evaluate: over batches, through a model, without a backward pass."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Side
from hotlap.analysis.frequency.hotness import LoopKind
from hotlap.analysis.parse.calls import BACKWARDS, is_library, may_be_model
from hotlap.analysis.parse.terms import MODULE, NUMBER, TENSORS, TEXT, UNKNOWN, Term
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Definition, Repeated, last_name
from hotlap.records.scan_finding import Frequency

Block = Repeated | ast.With | ast.If | Definition
_TRAINS = frozenset(("backward", "manual_backward", "zero_grad", "grad"))


def evaluations(code: Code) -> Iterator[tuple[Repeated, bool]]:
    """Yield the loops that evaluate, and whether the model was put in evaluation mode for them."""
    for node in code.nodes(ast.For, ast.While):
        assert isinstance(node, Repeated)
        if not (code.is_batch_loop(node) or _makes_hot(code, node)) or trains(code, node):
            continue
        in_eval_mode = code.put_to_eval(node) or _is_put_to_eval(code, node) or _steps_evaluate(code, node)
        if runs_model(code, node) or (in_eval_mode and code.is_quiet(node)):
            yield node, in_eval_mode


def comprehended(code: Code) -> Iterator[ast.ListComp | ast.GeneratorExp]:
    """Yield comprehensions such as `[model(batch) for batch in loader]`."""
    for node in code.nodes(ast.ListComp, ast.GeneratorExp):
        assert isinstance(node, ast.ListComp | ast.GeneratorExp)
        heat = code.heat(node.elt)
        if heat.hot and heat.side is Side.EVALUATE and code.goes_over_batches(node):
            calls = [call for call in walk(node.elt) if isinstance(call, ast.Call)]
            if any(_is_model_call(code, call) or _is_recording(code, call) for call in calls):
                yield node


def at_once(code: Code) -> Iterator[ast.Call]:
    """Yield calls such as `model.eval(); output = model(features)` after a training step or epoch, which evaluate all
    the data in one call without a loop."""
    for put in code.calls("eval"):
        statement, heat = code.statement(put), code.heat(put)
        often = heat.hot or (heat.frequency is Frequency.EPOCH and not heat.rarely)
        alone = isinstance(statement, ast.Expr) and isinstance(put.func, ast.Attribute) and not put.args
        if not alone or not often or heat.side is not Side.TRAIN or not _follows_training(code, statement):
            continue
        model = ast.unparse(put.func.value)  # type: ignore[attr-defined]
        rest = code.block(statement)[code.block(statement).index(statement) + 1 :]
        calls = [call for later in rest if not isinstance(later, Repeated) for call in _calls_in(later)]
        called = [call for call in calls if ast.unparse(call.func) in (model, f"{model}.forward")]
        if called and not any(last_name(call.func) in _TRAINS for call in calls):
            yield called[0]


def _follows_training(code: Code, put: ast.stmt) -> bool:
    """Return whether a backward pass of the same function comes before, and none follows in the same iteration."""
    function = code.function(put)
    if function is None:
        return False
    lines = [call.lineno for call in _calls_in(function) if last_name(call.func) in BACKWARDS]
    end = next(iter(code.loops(put)), function).end_lineno or put.lineno
    return bool(lines) and min(lines) < put.lineno and not any(put.lineno < line <= end for line in lines)


def _calls_in(node: ast.AST) -> list[ast.Call]:
    return [call for call in walk(node) if isinstance(call, ast.Call)]


def _makes_hot(code: Code, loop: Repeated) -> bool:
    """Match a loop over something unknown that runs a model once an epoch."""
    inside = code.heat(loop.body[0])
    return inside.hot and inside.side is Side.EVALUATE and not code.heat(loop).hot


def trains(code: Code, loop: Repeated) -> bool:
    """Return whether a backward pass is made in the loop, or in something that it calls."""
    heat = code.heat(loop.body[0])
    if heat.side is Side.TRAIN and code.loop_kind(loop) >= LoopKind.BATCH_LIKELY and heat.hot:
        return True
    calls = [node for node in walk(loop) if isinstance(node, ast.Call)]
    return any(last_name(call.func) in _TRAINS or _differentiates(code, call) for call in calls)


def _differentiates(code: Code, call: ast.Call) -> bool:
    """Match calls that make a backward pass inside, such as an attack on the model: `self.attack(data)`."""
    named = isinstance(call.func, ast.Name | ast.Attribute)
    return named and code.hotness.differentiates(code.asked(call.func), code.path)


def runs_model(code: Code, block: Block) -> bool:
    """Return whether the block calls a module, or a function of the project that calls one."""
    return bool(model_calls(code, block)) or _helper_calls(code, block)


def model_calls(code: Code, loop: Block) -> list[ast.Call]:
    return [
        node
        for statement in loop.body
        for node in walk(statement)
        if isinstance(node, ast.Call) and _is_model_call(code, node)
    ]


def _is_model_call(code: Code, call: ast.Call) -> bool:
    return code.callee_kind(call) == MODULE or _may_run_model(code, call)


def _may_run_model(code: Code, call: ast.Call) -> bool:
    """Match an argument or attribute that is called with a tensor and is not a function of the project."""
    callee = code.asked(call.func)
    if _passes_model(code, call, callee):
        return True
    if isinstance(call.func, ast.Attribute) and code.kind(call.func.value) == MODULE:
        return any(code.kind(argument) in TENSORS for argument in call.args)  # model.get_codes(batch)
    if not may_be_model(callee) or code.kind(call.func) != UNKNOWN or isinstance(code.term(call.func), tuple):
        return False
    return any(code.kind(argument) in TENSORS for argument in call.args) and not code.project.targets(callee, code.path)


def _passes_model(code: Code, call: ast.Call, callee: Term) -> bool:
    """Match `run_forward(model=model, batch=batch)` of an unknown function that gets the model and a tensor."""
    given = [*call.args, *(word.value for word in call.keywords)]
    if len(given) < 2 or is_library(callee) or not any(code.kind(value) in TENSORS for value in given):
        return False
    return any(code.kind(value) == MODULE for value in given) and not code.project.targets(callee, code.path)


def _helper_calls(code: Code, block: Block) -> bool:
    """Return whether the block calls a function that runs a model and records its graph: `self._predict_batch(x)`."""
    return any(
        isinstance(node, ast.Call) and _is_recording(code, node) for statement in block.body for node in walk(statement)
    )


def _is_recording(code: Code, call: ast.Call) -> bool:
    named = isinstance(call.func, ast.Name | ast.Attribute)
    return named and code.hotness.records(code.asked(call.func), code.path)


def _is_put_to_eval(code: Code, loop: Repeated) -> bool:
    scope = code.function(loop) or code.tree
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "eval"
        and not node.args
        for node in walk(scope)
    )


def _steps_evaluate(code: Code, loop: Repeated) -> bool:
    """Match loops that call a function which puts the model in evaluation mode and runs it: `trainer.predict(x)`."""
    calls = [call for statement in loop.body for call in _calls_in(statement)]
    named = [call for call in calls if call.args and isinstance(call.func, ast.Name | ast.Attribute)]
    return any(
        code.project.function(target).evaluates and _is_recording(code, call)
        for call in named
        for target in code.project.targets(code.asked(call.func), code.path)
    )


def returns_tensors(code: Code, function: Definition) -> bool:
    """Return whether the function returns or stores what may be a tensor that somebody differentiates later."""
    for node in walk(function):
        if isinstance(node, ast.Return | ast.Yield) and node.value is not None and not _is_harmless(code, node.value):
            return True
        stored = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
        if stored and code.kind(node.value) in TENSORS:  # type: ignore[attr-defined]
            return True
    return False


def _is_harmless(code: Code, value: ast.expr) -> bool:
    if isinstance(value, ast.Tuple | ast.List):
        return all(_is_harmless(code, part) for part in value.elts)
    if isinstance(value, ast.Dict):
        return all(_is_harmless(code, part) for part in value.values)
    return is_plain(code.term(value))


def is_plain(term: Term) -> bool:
    if isinstance(term, str):
        return term in (NUMBER, TEXT, "extent", "array", "frame")
    if term[0] in ("tuple", "list", "dict"):
        return all(is_plain(part) for part in term[1:])
    return False

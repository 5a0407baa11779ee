"""Evaluation that records a graph nobody differentiates."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Heat
from hotlap.analysis.parse.positions import position_of
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Definition, Repeated, is_constant, last_name
from hotlap.analysis.queries.evaluation import (
    at_once,
    comprehended,
    evaluations,
    is_plain,
    model_calls,
    returns_tensors,
    runs_model,
)
from hotlap.analysis.queries.lasting import Leaves, hands_over, leaves
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability, Confidence

WORDS = ("for ", "while ")
SEVERITY = "high"
ONLY_HOT = True
_MESSAGE = "this evaluation records a graph for a backward pass that never comes"
_REPAIR = "evaluate under torch.inference_mode()"
_APPLICABILITY = {
    Leaves.NOTHING: Applicability.SAFE,
    Leaves.UNKNOWN: Applicability.UNSAFE,
    Leaves.TENSORS: Applicability.DISPLAY_ONLY,
}
_READS = frozenset("item cpu numpy tolist detach argmax".split())  # reads of results, which discard their graph
_EVALUATES = frozenset(  # words that mark a function as an evaluation, if it loops over batches without a backward pass
    "eval evaluate evaluation test testing valid validate validation val predict prediction inference infer score "
    "embed embedding embeddings latent latents extract encode features".split()
)


def find(code: Code) -> Iterator[Found]:
    if "set_grad_enabled(" in code.text and _is_switched(code):
        return
    for loop, in_eval_mode in evaluations(code):
        if code.under_no_grad(loop) or not code.hot(loop.body[0]) or _is_quiet_inside(code, loop):
            continue
        function = code.function(loop)
        if function is not None and _is_generator(function):
            continue
        confidence = None if in_eval_mode else Confidence.MEDIUM if _gives_up(code, loop, function) else Confidence.LOW
        around = _around(code, loop, function) if in_eval_mode and _is_torch_named(code) else None
        yield Found(
            loop,
            _MESSAGE,
            _REPAIR,
            _APPLICABILITY[leaves(code, around)] if around is not None else Applicability.DISPLAY_ONLY,
            _heat(code, loop.body[0]),
            confidence,
            {"function": position_of(around, code.lines)} if isinstance(around, Definition) else {},
        )
    for node in comprehended(code):
        if not code.is_quiet(node) and code.hot(node.elt):
            yield Found(node, _MESSAGE, _REPAIR, heat=_heat(code, node.elt), confidence=Confidence.MEDIUM)
    for call in at_once(code):
        if not code.is_quiet(call):
            yield Found(call, _MESSAGE, _REPAIR, confidence=Confidence.MEDIUM)
    for loop in _shared_loops(code):
        yield Found(loop, _MESSAGE, _REPAIR, heat=_heat(code, loop.body[0]), confidence=Confidence.MEDIUM)


def _is_quiet_inside(code: Code, loop: Repeated) -> bool:
    """Match a loop over `model.predict(batch)`, a method that records no graph by itself."""
    functions = [
        [code.project.function(target) for target in code.project.targets(code.asked(call.func), code.path)]
        for call in model_calls(code, loop)
    ]
    return bool(functions) and all(every and all(function.no_grad for function in every) for every in functions)


def _around(code: Code, loop: Repeated, function: Definition | None) -> Definition | Repeated | None:
    """Return what can run without a graph: the whole function, or the loop alone if the function also trains."""
    if function is not None and not returns_tensors(code, function) and leaves(code, function) is not Leaves.TENSORS:
        return function
    return None if hands_over(code, loop) else loop


def _heat(code: Code, node: ast.AST) -> Heat:
    """Report an evaluation that runs only once, too: its graph takes memory that may not be available."""
    heat = code.heat(node)
    return heat._replace(confidence=Confidence.MEDIUM) if heat.alone else heat


def _gives_up(code: Code, loop: Repeated, function: Definition | None) -> bool:
    """Tell whether the results of the loop are read and never differentiated."""
    scope = function or code.tree
    if any(_is_backward(node) for node in walk(scope)):
        return not _generates(code, loop) and _reads(loop) and _keeps_numbers(code, loop, scope)
    if function is None or _generates(code, loop):
        return False
    reads = _reads(loop)
    named = bool(set(function.name.lower().split("_")) & _EVALUATES)
    return named or (reads and not code.heat(function).hot)


def _reads(loop: Repeated) -> bool:
    return any(isinstance(node, ast.Call) and last_name(node.func) in _READS for node in walk(loop))


def _keeps_numbers(code: Code, loop: Repeated, scope: ast.AST) -> bool:
    """Tell whether, after a training in the same function, only numbers and lists of numbers outlive the loop."""
    end = loop.end_lineno or loop.lineno
    later = [
        node
        for node in walk(scope)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.lineno > end
        if node.id in code.stored(loop)
    ]
    earlier = any(_is_backward(node) and node.lineno < loop.lineno for node in walk(scope))  # type: ignore[attr-defined]
    return earlier and all(is_plain(code.term(node)) for node in later)


def _generates(code: Code, loop: Repeated) -> bool:
    """Recognise `for i in range(steps)`, which generates a sequence step by step rather than batch by batch."""
    counts = isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) == "range"
    return isinstance(loop, ast.While) or (counts and not code.takes_pieces(loop))


def _is_backward(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in ("backward", "manual_backward", "grad", "step")


def _shared_loops(code: Code) -> Iterator[Repeated]:
    """Yield loops for both training and validation, `if train: loss.backward()`, that record a graph either way."""
    for call in code.calls("backward"):
        loop, function = code.batch_loop(call), code.function(call)
        choice = next((outer for outer in code.ancestors(call) if isinstance(outer, ast.If)), None)
        if loop is None or function is None or choice is None or loop not in code.ancestors(choice):
            continue
        if not _asks_for_training(code, choice, function) or code.under_no_grad(loop) or code.mentions_grad(function):
            continue
        reference = code.reference(call)
        if (
            any(invocation.no_grad for _, invocation in code.hotness.callers.get(reference, ()))
            if reference is not None
            else False
        ):
            continue  # the callers that evaluate with it use no_grad
        if runs_model(code, loop) and not runs_model(code, choice) and code.hot(loop.body[0]):
            yield loop


def _asks_for_training(code: Code, choice: ast.If, function: Definition) -> bool:
    """Recognise tests of an argument or a phase: `if train`, `if not validate`, `if phase == "train"`."""
    test = choice.test
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq):
        compared = test.comparators[0]
        return isinstance(compared, ast.Constant) and str(compared.value).lower() in ("train", "training")
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot):
        return "opt" in last_name(test.left).lower() and _is_argument(test.left, function)
    if isinstance(test, ast.Attribute):
        return test.attr == "training"  # of the model
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        evaluates = set(last_name(test.operand).lower().split("_")) & _EVALUATES
        return _is_argument(test.operand, function) and bool(evaluates)
    if isinstance(test, ast.Name) and any(_is_phase(node, test.id) for node in walk(function)):
        return True
    if not _is_argument(test, function):
        return False
    return "train" in last_name(test).lower() or _is_disabled_by_caller(code, test, function)


def _is_phase(node: ast.AST, name: str) -> bool:
    """Recognise `training = phase == "train"`."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Compare):
        return False
    constants = [comparator.value for comparator in node.value.comparators if isinstance(comparator, ast.Constant)]
    named = any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    return named and any(str(value).lower() in ("train", "training") for value in constants)


def _is_argument(node: ast.expr, function: Definition) -> bool:
    parameters = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return isinstance(node, ast.Name) and any(argument.arg == node.id for argument in parameters)


def _is_disabled_by_caller(code: Code, test: ast.expr, function: Definition) -> bool:
    """Tell whether a call in the file passes `False` for the argument."""
    return any(
        word.arg == last_name(test) and is_constant(word.value, False)
        for call in code.calls(function.name)
        for word in call.keywords
    )


def _is_switched(code: Code) -> bool:
    """Recognise `torch.set_grad_enabled(False)` as a statement, or with a variable: how long it holds is unknown."""
    return any(
        isinstance(code.parent(call), ast.Expr) or not (call.args and isinstance(call.args[0], ast.Constant))
        for call in code.calls("set_grad_enabled")
    )


def _is_generator(function: Definition) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in walk(function))


def _is_torch_named(code: Code) -> bool:
    return any(
        isinstance(node, ast.Import) and any(alias.name == "torch" and alias.asname is None for alias in node.names)
        for node in code.nodes(ast.Import)
    )

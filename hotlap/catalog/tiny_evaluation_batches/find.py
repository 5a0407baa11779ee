"""Evaluation on one sample at a time: by a loader with batches of one, or file by file."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency import modes
from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.frequency.hotness import LoopKind
from hotlap.analysis.parse.terms import MODULE
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries import evaluation, loaders
from hotlap.analysis.queries.code import Code, Definition, Repeated, keyword, last_name
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Confidence, Frequency, Step

WORDS = ("DataLoader(", "eval_batch_size", "unsqueeze(0)", "unsqueeze(dim=0)", "[None")
TESTS = False
_HOOKS = frozenset(("val_dataloader", "test_dataloader", "predict_dataloader", "get_eval_dataloader"))


def find(code: Code) -> Iterator[Found]:
    yield from _loaders(code)
    yield from _one_by_one(code)
    for call in code.calls("TrainingArguments", "Seq2SeqTrainingArguments"):
        evaluation_size, training_size = (
            keyword(call, "per_device_eval_batch_size"),
            keyword(call, "per_device_train_batch_size"),
        )
        if _is_one(evaluation_size) and training_size is not None and not _is_one(training_size):
            assert evaluation_size is not None
            yield _found(code, evaluation_size, Confidence.HIGH)


# Loaders


def _loaders(code: Code) -> Iterator[Found]:
    all_loaders = list(loaders.loaders(code))
    batched = any(_batch_size(loader) not in (1, None) for loader in all_loaders)
    for loader in all_loaders:
        if _batch_size(loader) == 1 and _evaluates(code, loader.call):
            yield _found(code, loader.call, Confidence.MEDIUM if batched else Confidence.LOW)


def _batch_size(loader: loaders.Loader) -> object:
    """Return 1, another number or "expression"; None if it cannot be seen or batches are made elsewhere."""
    if not loader.complete or "batch_sampler" in loader.settings:
        return None
    batch_size = loader.settings.get("batch_size")
    if batch_size is None:
        return 1 if "collate_fn" not in loader.settings else None
    return batch_size.value if isinstance(batch_size, ast.Constant) else "expression"


def _is_one(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1


def _evaluates(code: Code, call: ast.Call) -> bool:
    """Tell whether the loader is iterated over without a graph: in this file, or by a function it is passed to."""
    function = code.function(call)
    if function is not None and function.name in _HOOKS and isinstance(code.statement(call), ast.Return):
        return True
    statement = code.statement(call)
    if isinstance(statement, ast.Assign) and statement.value is call and len(statement.targets) == 1:
        return _is_evaluated(code, ast.unparse(statement.targets[0]))
    loop = code.parent(call)
    while isinstance(loop, ast.Call):
        loop = code.parent(loop)
    return isinstance(loop, ast.For) and code.under_no_grad(loop) and not evaluation.trains(code, loop)


def _is_evaluated(code: Code, name: str) -> bool:
    """Tell whether the loader of this name is used, and only in evaluations."""
    found = False
    for loop in code.nodes(ast.For):
        if isinstance(loop, ast.For) and name in _iterated(loop.iter) and code.is_batch_loop(loop):
            if evaluation.trains(code, loop) or not code.under_no_grad(loop):
                return False
            found = True
    for call in code.all_calls():
        used = next((number for number, argument in enumerate(call.args) if ast.unparse(argument) == name), None)
        if used is None:
            continue
        answer = _function_evaluates(code, call, used)
        if answer is False:
            return False
        found = found or bool(answer)
    return found


def _iterated(node: ast.expr) -> set[str]:
    return {ast.unparse(name) for name in walk(node) if isinstance(name, ast.Name | ast.Attribute)}


def _function_evaluates(code: Code, call: ast.Call, number: int) -> bool | None:
    """Tell whether the function evaluates with that argument; return None if it does not iterate over it."""
    result = None
    for reference in code.project.targets(code.term(call.func), code.path):
        function = code.project.function(reference)
        shift = 1 if function.owner and isinstance(call.func, ast.Attribute) else 0
        for index, kind in enumerate(code.hotness.kinds.get(reference, ())):
            over = function.loops[index].over
            while isinstance(over, tuple) and over[0] == "enumerated":
                over = over[1]
            annotated = number + shift < len(function.annotations) and over == function.annotations[number + shift]
            if kind >= LoopKind.BATCH_LIKELY and (over == ("param", function.name, number + shift) or annotated):
                no_grad = function.loops[index].no_grad or modes.under_no_grad(
                    code.project, code.hotness.callers, reference
                )
                heat = code.hotness.at(reference, (index,))
                result = no_grad and heat is not None and heat.side is Side.EVALUATE
    return result


# Loops over files or samples


def _one_by_one(code: Code) -> Iterator[Found]:
    """Yield `model(image.unsqueeze(0))` in a loop over samples, without a graph."""
    for node in code.nodes(ast.For):
        assert isinstance(node, ast.For)
        if code.is_batch_loop(node) and not code.under_no_grad(node):
            continue
        if not _without_graph(code, node):
            continue
        for call in evaluation.model_calls(code, node):
            if next(code.loops(call), None) is node and _is_single(call, _flowing(node)):
                yield _found(code, call, _certainty(code, call))
                break


def _without_graph(code: Code, loop: Repeated) -> bool:
    if code.under_no_grad(loop):
        return True
    for outer in code.ancestors(loop):
        if isinstance(outer, Definition):
            return False
        if isinstance(outer, ast.With) and any("no_grad" in ast.unparse(item) for item in outer.items):
            return True
    return False


def _certainty(code: Code, call: ast.Call) -> Confidence:
    """Return low confidence for a script that only predicts: it holds up no training."""
    return Confidence.MEDIUM if code.trains() and code.callee_kind(call) == MODULE else Confidence.LOW


def _flowing(loop: ast.For) -> set[str]:
    """Return the names that depend on the element of the loop, and not on the previous iteration."""
    names = {name.id for name in walk(loop.target) if isinstance(name, ast.Name)}
    for statement in loop.body:
        for node in walk(statement):
            if isinstance(node, ast.Assign) and names & _names(node.value):
                names |= {name.id for target in node.targets for name in walk(target) if isinstance(name, ast.Name)}
    return names


def _names(node: ast.AST) -> set[str]:
    return {name.id for name in walk(node) if isinstance(name, ast.Name)}


def _is_single(call: ast.Call, flowing: set[str]) -> bool:
    """Tell whether one sample is made a batch in the call of the model."""
    return any(_adds_dimension(argument) and flowing & _names(argument) for argument in call.args)


def _adds_dimension(node: ast.expr) -> bool:
    for inner in walk(node):
        if isinstance(inner, ast.Call) and last_name(inner.func) == "unsqueeze":
            dimension = inner.args[0] if inner.args else keyword(inner, "dim")
            if isinstance(dimension, ast.Constant) and dimension.value == 0:
                return True
        if isinstance(inner, ast.Subscript) and _begins_with_none(inner.slice):
            return True
    return False


def _begins_with_none(index: ast.expr) -> bool:
    first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
    return isinstance(first, ast.Constant) and first.value is None


def _found(code: Code, node: ast.expr, confidence: Confidence) -> Found:
    heat = Heat(
        Frequency.BATCH, Confidence.HIGH, Side.EVALUATE, (Step(code.path, node.lineno, "one sample per batch"),)
    )
    return Found(
        node,
        "the evaluation runs the model on one sample at a time",
        "evaluate in batches larger than those of training: nothing is kept for a backward pass",
        heat=heat,
        confidence=confidence,
    )

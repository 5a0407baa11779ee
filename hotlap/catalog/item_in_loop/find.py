"""`.item()`, `.cpu()`, `float()` and similar reads on every batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Heat
from hotlap.analysis.parse.features import SINGLE
from hotlap.analysis.parse.positions import position_of
from hotlap.analysis.parse.terms import SCHEDULER, TENSOR, UNKNOWN
from hotlap.analysis.queries import programs, syncs
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.environments import is_acting
from hotlap.analysis.queries.graphs import differentiated, is_tensor
from hotlap.analysis.queries.repeats import repeats
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import set_to
from hotlap.analysis.queries.sums import accumulated
from hotlap.records.scan_finding import Applicability, Confidence

WORDS = ("[", "sched", "torch.", ".item(", ".cpu(", ".numpy(", ".tolist(", "cpu", "float(", "int(", "bool(")
ONLY_HOT = True
_OF_NUMBERS = ("torch.tensor", "torch.FloatTensor", "torch.LongTensor", "numpy.array", "numpy.asarray")
_SHOWING = frozenset("print info debug write log log_metrics add_scalar set_postfix set_description".split())
_SIZED = {name: f"torch.{name}" for name in ("zeros", "ones", "empty", "eye", "arange")} | {"range": "range"}


def find(code: Code) -> Iterator[Found]:
    yield from _metrics(code)
    yield from _sizes(code)
    yield from _indices(code)
    yield from _tensor_lists(code)
    again = {call for _, call in repeats(code)}  # reported by synced-twice: it costs little once the first read is gone
    for call, tensor, confidence in syncs.explicit(code):
        if not code.hot(call) or syncs.in_test(code, call):
            continue
        if call in again or is_acting(code, call):
            confidence = Confidence.LOW
        message = f"`{syncs.shown(call)}` waits for the device {code.heat(call).frequency}"
        hints = _hints(code, call, tensor)
        if hints:
            applicability = Applicability.UNSAFE if hints["double"] == "" else Applicability.SAFE
            repair = f"add up on the device, and read `{hints['name']}` once after the loop"
            yield Found(call, message, repair, applicability, _heat(code, call), confidence, hints)
        else:
            yield Found(call, message, _repair(code, call), heat=_heat(code, call), confidence=confidence)


def _heat(code: Code, call: ast.Call) -> Heat:
    """Treat a step that is a whole epoch as any other, unless the value is only shown or belongs to an evaluation."""
    heat = code.heat(call)
    reference = code.reference(call) if heat.whole else None
    if reference is None or code.project.function(reference).evaluates or code.is_quiet(call):
        return heat
    shown = any(isinstance(outer, ast.Call) and last_name(outer.func) in _SHOWING for outer in code.ancestors(call))
    return heat if shown else heat.as_step()


def _metrics(code: Code) -> Iterator[Found]:
    """Yield `scheduler.step(loss)`: a scheduler that takes a metric turns it into a number."""
    known_tensors = differentiated(code)
    for call in code.calls("step"):
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        if (
            receiver is None
            or len(call.args) != 1
            or not is_tensor(code, call.args[0], known_tensors)
            or not code.hot(call)
        ):
            continue
        if code.kind(receiver) == SCHEDULER or (code.kind(receiver) == UNKNOWN and "sched" in last_name(receiver)):
            yield Found(
                call,
                f"`{syncs.shown(call)}` reads the metric from the device {code.heat(call).frequency}",
                "step the scheduler once an epoch, with a metric summed on the device",
                confidence=Confidence.MEDIUM,
            )


def _sizes(code: Code) -> Iterator[Found]:
    """Yield `torch.zeros(index.max() + 1, 8)`: a size must be a number, so the tensor is read."""
    for call in code.calls(*_SIZED):
        arguments = [*call.args, *(word.value for word in call.keywords if word.arg in ("size", "start", "end"))]
        if not arguments or code.full_name(call.func) not in _SIZED.values() or not code.hot(call):
            continue
        sizes = arguments[0].elts if isinstance(arguments[0], ast.Tuple | ast.List) else arguments
        read = next((size for size in sizes if code.kind(size) == TENSOR), None)
        if read is not None:
            yield Found(
                call,
                f"the size `{syncs.shown(read)}` is read from the device {code.heat(call).frequency}",
                "take the size from a shape, or have the loader return it as a number",
            )


def _indices(code: Code) -> Iterator[Found]:
    """Yield `partitions[best]` of a Python list: the tensor is read to become a number."""
    for node in code.nodes(ast.Subscript):
        assert isinstance(node, ast.Subscript)
        if code.kind(node.slice) != TENSOR or not isinstance(node.value, ast.Name | ast.Attribute):
            continue
        values = set_to(code, node.value) if code.hot(node) else []
        if values and all(isinstance(value, ast.List | ast.ListComp) for value in values):
            yield Found(
                node,
                f"`{syncs.shown(node)}` reads the index from the device {code.heat(node).frequency}",
                "keep the list as one tensor, and index that",
                confidence=Confidence.MEDIUM,
            )


def _tensor_lists(code: Code) -> Iterator[Found]:
    """Yield `torch.tensor(volumes)` of a list of tensors: each of them is read separately."""
    for call in code.calls("tensor", "FloatTensor", "LongTensor", "array", "asarray"):
        if not call.args or code.full_name(call.func) not in _OF_NUMBERS or not code.hot(call):
            continue
        if code.term(call.args[0]) == ("list", TENSOR) and _holds_results(code, call.args[0]):
            yield Found(
                call,
                f"`{syncs.shown(call)}` reads each tensor in the list separately {code.heat(call).frequency}",
                "join them on the device: torch.stack",
                confidence=Confidence.MEDIUM,
            )


def _holds_results(code: Code, name: ast.expr) -> bool:
    """Tell whether the list is filled in the same function with results of torch operations."""
    function = code.function(name)
    if not isinstance(name, ast.Name) or function is None:
        return False
    appended = [
        call.args[0]
        for call in code.calls("append")
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == name.id and call.args
        if code.function(call) is function
    ]
    return bool(appended) and all(
        isinstance(value, ast.Call) and code.full_name(value.func).startswith("torch.") and code.kind(value) == TENSOR
        for value in appended
    )


def _hints(code: Code, call: ast.Call, tensor: ast.expr) -> dict[str, str]:
    if last_name(call.func) != "item" or "import torch" not in code.text:
        return {}
    where = accumulated(code, call)
    if where is None:
        return {}
    return {
        "name": where.name,
        "loop": position_of(where.loop, code.lines),
        "listed": "yes" if where.listed else "",
        "whole": "yes" if where.whole else "",
        "double": "" if programs.of(code).mentions(code.path, SINGLE) else "yes",
    }


def _repair(code: Code, call: ast.Call) -> str:
    if last_name(call.func) in ("cpu", "numpy", "tolist", "to"):
        return "keep the results on the device and move them once, after the loop"
    return "keep it on the device, and read it once an epoch or every hundredth batch"

"""Finds CUDA used in forked processes: in loader workers and in what multiprocessing runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Side
from hotlap.analysis.parse import features
from hotlap.analysis.parse.torch_names import CREATION
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries import loaders
from hotlap.analysis.queries.code import Code, keyword
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.samples import set_to
from hotlap.analysis.queries.syncs import shown
from hotlap.analysis.queries.transfers import is_device, transfers
from hotlap.records.scan_finding import Confidence

WORDS = ("cuda", ".to(", "device=")
TESTS = False
PREVIEW = True  # none of its five findings in repositories that nobody here knew was right
_STARTING = ("multiprocessing.", "torch.multiprocessing.", "concurrent.futures.", "multiprocess.")
_CUDA = re.compile(r"\bcuda\b|\.to\((?:self\.)?device")
_HARMLESS = re.compile(r"is_available|device_count|manual_seed|get_device_name|is_initialized")


def find(code: Code) -> Iterator[Found]:
    if code.project_uses(features.OTHER_START):
        return
    yield from _in_workers(code)
    yield from _in_processes(code)


# Workers of a loader


def _in_workers(code: Code) -> Iterator[Found]:
    seen: set[ast.AST | None] = set()
    workers = _workers(code)
    for node, certain in sorted((*_placed(code), *_stored_on_device(code)), key=lambda pair: pair[0].lineno):
        heat = code.heat(node)
        function = code.function(node)
        if heat.side is not Side.LOAD or not heat.hot or function in seen or workers is None:
            continue
        seen.add(function)
        yield Found(
            node,
            f"`{shown(node, 40)}` uses the device in a forked worker of the loader, where CUDA fails",
            "load on the host and move whole batches in the training loop; then workers can be forked",
            confidence=min((workers, certain), key=lambda confidence: confidence.rank),
        )


def _stored_on_device(code: Code) -> Iterator[tuple[ast.expr, Confidence]]:
    """Yield uses of `self.data` in `__getitem__` if the constructor has put it on a device."""
    for owner in code.nodes(ast.ClassDef):
        assert isinstance(owner, ast.ClassDef)
        methods = {method.name: method for method in owner.body if isinstance(method, ast.FunctionDef)}
        if "__init__" not in methods or "__getitem__" not in methods:
            continue
        stored = {
            ast.unparse(statement.targets[0]): certain
            for call, certain in _placed(code)
            if code.function(call) is methods["__init__"]
            and isinstance(statement := code.statement(call), ast.Assign)
            and statement.value is call
        }
        for node in walk(methods["__getitem__"]):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in stored:
                yield node, stored[ast.unparse(node)]


def _workers(code: Code) -> Confidence | None:
    """Return how sure it is that worker processes load the data; None if they do not."""
    found = list(loaders.loaders(code))
    kinds = {loader.workers() for loader in found if "multiprocessing_context" not in loader.settings}
    if "some" in kinds:
        return Confidence.HIGH
    if "unknown" in kinds:
        return Confidence.MEDIUM
    if found:
        return None
    return Confidence.MEDIUM if code.project_uses(features.WORKERS) else None


def _placed(code: Code) -> Iterator[tuple[ast.Call, Confidence]]:
    """Yield calls that put something on a device, and how sure it is that the device is a GPU."""
    for call, _, device in transfers(code):
        if not _is_parameter(code, device):
            yield call, _certainty(device)
    for call in code.calls(*CREATION):
        device = keyword(call, "device")
        known = code.full_name(call.func).startswith("torch.") and not _is_parameter(code, device)
        if device is not None and known and is_device(code, device):
            yield call, _certainty(device)


def _is_parameter(code: Code, device: ast.expr | None) -> bool:
    """Return whether the caller chooses the device, by an argument or a tensor's `x.device`: it may be the CPU."""
    if isinstance(device, ast.Attribute) and device.attr == "device" and isinstance(device.value, ast.Name):
        return device.value.id != "self"
    function = code.function(device) if isinstance(device, ast.Name) else None
    if function is None or not isinstance(device, ast.Name):
        return False
    if any(isinstance(value, ast.Attribute) and value.attr == "device" for value in set_to(code, device)):
        return True  # device = samples[0].device
    return any(argument.arg == device.id for argument in (*function.args.args, *function.args.kwonlyargs))


def _certainty(device: ast.expr | None) -> Confidence:
    return Confidence.HIGH if device is None or "cuda" in ast.unparse(device) else Confidence.MEDIUM


# Processes started by the program


def _in_processes(code: Code) -> Iterator[Found]:
    for call in code.calls("Process", "Pool", "ProcessPoolExecutor"):
        if not code.full_name(call.func).startswith(_STARTING) or keyword(call, "mp_context") is not None:
            continue
        if _uses_cuda(code, call) and _has_begun(code, call):
            yield Found(
                call,
                f"`{shown(call, 40)}` forks a process that uses CUDA, which fails in the fork",
                'start a fresh process: torch.multiprocessing.get_context("spawn")',
                confidence=Confidence.MEDIUM,
            )


def _uses_cuda(code: Code, call: ast.Call) -> bool:
    """Return whether the function that the process runs mentions CUDA."""
    given = keyword(call, "target") or keyword(call, "initializer")
    if given is None or not isinstance(given, ast.Name | ast.Attribute):
        return False
    name = given.attr if isinstance(given, ast.Attribute) else given.id
    return any(
        isinstance(function, ast.FunctionDef)
        and function.name == name
        and _CUDA.search(_HARMLESS.sub("", ast.unparse(function)))
        for function in code.nodes(ast.FunctionDef)
    )


def _has_begun(code: Code, call: ast.Call) -> bool:
    """Return whether something was put on the GPU before, in the same function or at module level."""
    here = code.function(call)
    return any(
        placed.lineno < call.lineno and code.function(placed) in (here, None) and certain is Confidence.HIGH
        for placed, certain in _placed(code)
    )

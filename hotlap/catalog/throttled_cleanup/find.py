"""Finds empty_cache, gc.collect and synchronize calls made for every batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.positions import position_of
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability, Frequency

WORDS = ("empty_cache", "gc.collect", "synchronize", "ipc_collect", "collect(")
SEVERITY = "high"
_DEVICES = ("cuda", "mps", "xpu", "accelerator")
_EMPTYING = frozenset((*(f"torch.{device}.empty_cache" for device in _DEVICES), "torch.cuda.ipc_collect"))
_WAITING = frozenset(f"torch.{device}.synchronize" for device in _DEVICES)


_CLOCKS = frozenset("time perf_counter monotonic process_time perf_counter_ns time_ns elapsed_time".split())


def find(code: Code) -> Iterator[Found]:
    for call in code.calls("empty_cache", "collect", "synchronize", "ipc_collect"):
        name = code.full_name(call.func)
        if name in _WAITING:
            what, safe = "waits until the device is idle", False
        elif name in _EMPTYING:
            what, safe = "waits for the device and frees memory that the next batch needs again", True
        elif name == "gc.collect":
            what, safe = "walks over every object in the process", True
        else:
            continue
        per_file = name == "gc.collect" and code.heat(call).frequency is Frequency.FILE
        if (code.hot(call) or per_file) and not _is_asked_for(code, call):
            yield _found(code, call, what, safe and not per_file)


def _is_asked_for(code: Code, call: ast.Call) -> bool:
    """Match `if args.synchronize_step: torch.cuda.synchronize()`, an option for whoever wants to wait."""
    tests = [outer.test for outer in code.ancestors(call) if isinstance(outer, ast.If)]
    named = (getattr(node, "id", getattr(node, "attr", "")) for test in tests for node in walk(test))
    return any("sync" in name.lower() for name in named if isinstance(name, str))


def _is_timed(code: Code, call: ast.Call) -> bool:
    """Return whether a clock is read around the call: without it, the program would measure something else."""
    scope = code.function(call) or code.tree
    return any(isinstance(node, ast.Call) and last_name(node.func) in _CLOCKS for node in walk(scope))


def _found(code: Code, call: ast.Call, what: str, safe: bool) -> Found:
    statement = code.statement(call)
    alone = isinstance(statement, ast.Expr) and statement.value is call
    applicability = Applicability.SAFE if safe else Applicability.UNSAFE
    alone = alone and (safe or not _is_timed(code, call))
    return Found(
        call,
        f"`{ast.unparse(call)}` {what}, {code.heat(call).frequency}",
        "remove it: torch reuses freed memory and waits where it must",
        applicability if alone else Applicability.DISPLAY_ONLY,
        hints={"remove": position_of(_whole(code, statement), code.lines)} if alone else {},
    )


def _whole(code: Code, statement: ast.stmt) -> ast.stmt:
    """Return the statement, or the `if torch.cuda.is_available():` around it if that contains nothing else."""
    parent = code.parent(statement)
    if isinstance(parent, ast.If) and parent.body == [statement] and not parent.orelse and _is_pure(parent.test):
        grand = code.parent(parent)
        if not (isinstance(grand, ast.If) and grand.orelse == [parent]):  # an elif is part of its if
            return parent
    return statement


def _is_pure(test: ast.expr) -> bool:
    calls = [node for node in walk(test) if isinstance(node, ast.Call)]
    return all(isinstance(call.func, ast.Attribute) and call.func.attr == "is_available" for call in calls)

"""Finds calls that write a line, a scalar or a progress display."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.names.classes import Reference
from hotlap.analysis.parse.terms import ACCELERATOR, FILE, LOGGER, TENSOR, UNKNOWN, WRITER
from hotlap.analysis.parse.torch_names import WRITER_METHODS
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name

_FUNCTIONS = frozenset(
    "print wandb.log mlflow.log_metric mlflow.log_metrics logging.info logging.log tqdm.tqdm.write "
    "tqdm.auto.tqdm.write click.echo rich.print sys.stdout.write sys.stderr.write".split()
)
_METHODS = frozenset(("info", "log", "print"))
BAR_METHODS = frozenset(("set_postfix", "set_postfix_str", "set_description", "set_description_str"))


def calls(code: Code) -> Iterator[ast.Call]:
    yield from lines(code)
    yield from code.calls(*BAR_METHODS)


def lines(code: Code) -> Iterator[ast.Call]:
    """Yield the calls that write anything but progress bars, in no particular order."""
    wrapped, inside = _wrapped(code)
    yield from wrapped
    for call in code.calls("print", "log", "log_metric", "log_metrics", "info", "write", "echo"):
        if _writes(code, call) and call not in inside:
            yield call
    for call in code.calls(*WRITER_METHODS):
        if isinstance(call.func, ast.Attribute):
            yield call
    for call in code.calls("writerow", "writerows"):
        yield call


def _wrapped(code: Code) -> tuple[list[ast.Call], set[ast.Call]]:
    """Return the calls of the file's own functions that only write, `self.print(text)`, and the writes inside them."""
    calls: list[ast.Call] = []
    inside: set[ast.Call] = set()
    for function in code.nodes(ast.FunctionDef):
        assert isinstance(function, ast.FunctionDef)
        written = _only_writes(code, function)
        if written is None:
            continue
        known = [
            call
            for call in code.calls(function.name)
            if any(code.project.function(target).line == function.lineno for target in _targets(code, call))
        ]
        calls += known
        inside |= {written} if any(code.hot(call) for call in known) else set()
    return calls, inside


def _targets(code: Code, call: ast.Call) -> list[Reference]:
    return [target for target in code.project.targets(code.asked(call.func), code.path) if target.path == code.path]


def _only_writes(code: Code, function: ast.FunctionDef) -> ast.Call | None:
    """Match `def print(self, text): self.accelerator.print(text)`, also if only one process prints."""
    named = function.name.lstrip("_").startswith(("print", "log", "info", "write", "echo", "say"))
    if len(function.body) > 2 or not function.args.args or not named:
        return None
    last = function.body[-1]
    while isinstance(last, ast.If) and not last.orelse:
        last = last.body[-1]
    call = last.value if isinstance(last, ast.Expr | ast.Return) else None
    if not isinstance(call, ast.Call) or not call.args or not _writes(code, call):
        return None
    given = {parameter.arg for parameter in function.args.args}
    return call if isinstance(call.args[0], ast.Name) and call.args[0].id in given else None


def on_event(code: Code, node: ast.AST) -> bool:
    """Match code behind a comparison with a tensor's value, `if loss > 100`, which is rarely true."""
    inner = node
    for outer in code.ancestors(node):
        if isinstance(outer, ast.For | ast.While | ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        if isinstance(outer, ast.If) and inner in outer.body and any(_orders(code, part) for part in walk(outer.test)):
            return True
        inner = outer
    return False


def _orders(code: Code, node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        return False
    sides = (node.left, *node.comparators)
    return any(code.kind(side) == TENSOR or _is_read(side) for side in sides)


def _is_read(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == "item"


def _writes(code: Code, call: ast.Call) -> bool:
    name = code.full_name(call.func)
    if name:
        return name in _FUNCTIONS or name.startswith("loguru.logger.")
    if not isinstance(call.func, ast.Attribute):
        return False
    kind, method = code.kind(call.func.value), call.func.attr
    if kind in (LOGGER, WRITER, ACCELERATOR):
        return method in _METHODS
    if kind == FILE:
        return method == "write"
    # Nothing but a logger has a method info.
    return method == "info" and kind == UNKNOWN and "log" in last_name(call.func.value).lower()

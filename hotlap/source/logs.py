"""Calls that write a line, a scalar or a progress display."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.source.code import Code, last_name
from hotlap.source.terms import ACCELERATOR, FILE, LOGGER, UNKNOWN, WRITER
from hotlap.source.torch_names import WRITER_METHODS

_FUNCTIONS = frozenset(
    "print wandb.log mlflow.log_metric mlflow.log_metrics logging.info logging.log tqdm.tqdm.write "
    "tqdm.auto.tqdm.write click.echo rich.print sys.stdout.write sys.stderr.write".split()
)
_METHODS = frozenset(("info", "log"))
BAR_METHODS = frozenset(("set_postfix", "set_postfix_str", "set_description", "set_description_str"))


def calls(code: Code) -> Iterator[ast.Call]:
    yield from lines(code)
    yield from code.calls(*BAR_METHODS)


def lines(code: Code) -> Iterator[ast.Call]:
    """Everything but progress bars, in no particular order."""
    for call in code.calls("print", "log", "log_metric", "log_metrics", "info", "write", "echo"):
        if _writes(code, call):
            yield call
    for call in code.calls(*WRITER_METHODS):
        if isinstance(call.func, ast.Attribute):
            yield call
    for call in code.calls("writerow", "writerows"):
        yield call


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

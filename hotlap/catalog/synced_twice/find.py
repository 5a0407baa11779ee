"""The same value read from the device more than once in a batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.positions import position_of
from hotlap.analysis.queries import syncs
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.defaults import default
from hotlap.analysis.queries.repeats import repeats, within
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability, Confidence

WORDS = (".item(", ".cpu(", ".tolist(", "float(")
ONLY_HOT = True


def find(code: Code) -> Iterator[Found]:
    for first, again in repeats(code):
        yield _found(code, first, again)


def _found(code: Code, first: ast.Call, again: ast.Call) -> Found:
    name = f"{_short(first)}_value"
    free = f"{name}" not in code.text
    simple = isinstance(code.statement(first), ast.Expr | ast.Assign | ast.AugAssign | ast.Return | ast.AnnAssign)
    plain = not any(
        isinstance(node, ast.IfExp | ast.BoolOp | ast.Lambda | ast.comprehension) for node in within(code, first)
    )
    fixable = free and simple and plain and ast.dump(first) == ast.dump(again)
    return Found(
        again,
        f"`{syncs.shown(again)}` is read a second time (first on line {first.lineno})",
        f"read it once: {name} = {syncs.shown(first)}",
        Applicability.SAFE if fixable else Applicability.DISPLAY_ONLY,
        confidence=Confidence.LOW if code.stays_on_host or _is_optional(code, again) else None,
        hints={"first": position_of(first, code.lines), "name": name},
    )


def _is_optional(code: Code, node: ast.AST) -> bool:
    """Match a read behind an option of its function that is off by default: `if print_steps:`."""
    inner = node
    for outer in code.ancestors(node):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        if isinstance(outer, ast.If) and inner in outer.body and isinstance(outer.test, ast.Name):
            given = default(code, outer.test)
            if isinstance(given, ast.Constant) and not given.value:
                return True
        inner = outer
    return False


def _short(call: ast.Call) -> str:
    value = call.func.value if isinstance(call.func, ast.Attribute) else call.args[0]
    while isinstance(value, ast.Subscript):
        value = value.value
    return last_name(value).lower() or "read"

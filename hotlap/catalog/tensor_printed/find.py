"""Tensors turned into text, or passed to a logger, which reads them: print(loss), f"{loss}", add_scalar(…, loss)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries import logs
from hotlap.analysis.queries.code import Code
from hotlap.analysis.queries.graphs import differentiated, is_tensor
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Confidence

WORDS = ("print(", "{", "%", "add_scalar", "log(", "set_postfix", "info(", "str(", "write(")
SEVERITY = "low"
ONLY_HOT = True


def find(code: Code) -> Iterator[Found]:
    known_tensors = differentiated(code)
    for node in _printed_values(code):
        if (
            is_tensor(code, node, known_tensors)
            and code.hot(node)
            and not _on_failure(code, node)
            and not _is_number_of_table(code, node)
        ):
            yield Found(
                node,
                f"`{shown(node)}` is turned into text, which waits for the device {code.heat(node).frequency}",
                "log every hundredth batch, or log once an epoch what was collected",
                confidence=Confidence.LOW if _is_doubtful(code, node) else None,
            )


def _is_doubtful(code: Code, node: ast.expr) -> bool:
    return code.heat(node).maybes > 1 or logs.on_event(code, node) or code.stays_on_host


def _is_number_of_table(code: Code, node: ast.expr) -> bool:
    """Match `results["psnr"]` of a table of which other entries are tensors, if this one is only set to numbers."""
    table = node
    while isinstance(table, ast.BinOp):
        table = table.left
    if not isinstance(table, ast.Subscript) or not isinstance(table.slice, ast.Constant):
        return False
    name = ast.dump(table.value), table.slice.value
    scope = code.function(node) or code.tree
    values = [
        statement.value
        for statement in walk(scope)
        if isinstance(statement, (ast.Assign, ast.AugAssign))
        for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant)
        if (ast.dump(target.value).replace("Store", "Load"), target.slice.value) == name
    ]
    return bool(values) and not any(_may_be_tensor(code, value, name) for value in values)


def _may_be_tensor(code: Code, value: ast.expr, name: tuple[str, object]) -> bool:
    """Return whether any part of a sum or product is a tensor, except entries of the same table."""
    if isinstance(value, ast.BinOp):
        return _may_be_tensor(code, value.left, name) or _may_be_tensor(code, value.right, name)
    if isinstance(value, ast.Subscript) and ast.dump(value.value) == name[0]:
        return False
    return is_tensor(code, value, differentiated(code))


def _printed_values(code: Code) -> Iterator[ast.expr]:
    for node in code.nodes(ast.FormattedValue):
        assert isinstance(node, ast.FormattedValue)
        yield node.value
    for node in code.nodes(ast.BinOp):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and _is_text(node.left):
            yield from node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
    for call in code.calls("str", "repr", "format"):
        if isinstance(call.func, ast.Name) or _is_text(getattr(call.func, "value", None)):
            yield from _values(call)
    for call in logs.calls(code):
        yield from _values(call)


def _values(call: ast.Call) -> Iterator[ast.expr]:
    for value in (*call.args, *(word.value for word in call.keywords)):
        yield from value.values if isinstance(value, ast.Dict) else [value]


def _is_text(node: ast.expr | None) -> bool:
    if isinstance(node, ast.BinOp):  # '%11s' * 2 + '%11.4g' * 5
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _on_failure(code: Code, node: ast.expr) -> bool:
    """Recognise the message of an exception, which is only built if it is raised."""
    inner: ast.AST = node
    for outer in code.ancestors(node):
        if isinstance(outer, ast.Raise) or (isinstance(outer, ast.Assert) and outer.msg is inner):
            return True
        if isinstance(outer, ast.stmt):
            return False
        inner = outer
    return False

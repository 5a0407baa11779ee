"""Tells what a loop over elements does with them."""

from __future__ import annotations

import ast

from hotlap.analysis.parse.terms import MODULE
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.elements import ARRAYS, ElementLoop
from hotlap.analysis.queries.samples import mentions

_SCALAR = frozenset(
    "item int float bool abs max min round len append add update extend sqrt exp log tolist numpy cpu detach get str "
    "sum isnan setdefault index count format print range enumerate zip size long".split()
)
_READS = frozenset(("item", "tolist", "numpy", "cpu"))
_TO_NUMBER = frozenset(("int", "float", "bool", "max", "min", "abs"))
_LARGE = frozenset("matmul mm bmm index_add_ index_copy_ scatter_ masked_fill masked_fill_ copy_ view reshape".split())


def is_scalar_work(code: Code, found: ElementLoop) -> bool:
    """Return whether the body computes with single numbers, and calls neither a model nor whole-row operations."""
    for statement in found.loop.body:
        for node in walk(statement):
            if isinstance(node, ast.Call) and not _is_scalar_call(code, node):
                return False
            if isinstance(node, ast.Yield | ast.Await | ast.Try | ast.With | ast.Slice):
                return False
            if isinstance(node, ast.Constant) and node.value is Ellipsis:
                return False
    words = derived(found)
    return any(_is_computed(code, node, words) for statement in found.loop.body for node in walk(statement))


def _is_computed(code: Code, node: ast.AST, words: set[str]) -> bool:
    """Return whether an element is compared, added to, read or written, not just put somewhere."""
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Subscript) and code.kind(node.targets[0].value) in ARRAYS
    reads = isinstance(node, ast.Call) and last_name(node.func) in (*_READS, *_TO_NUMBER)
    works = isinstance(node, ast.Compare | ast.BinOp | ast.AugAssign)
    return (reads or works) and mentions(node, words)


def _is_scalar_call(code: Code, call: ast.Call) -> bool:
    name = code.full_name(call.func)
    if name.startswith("math."):
        return True
    if name.startswith(("torch.", "numpy.")):
        return name.rsplit(".", 1)[-1] in ("abs", "sqrt", "exp", "log", "max", "min", "sum", "equal", "isnan", "round")
    return code.callee_kind(call) != MODULE and last_name(call.func) in _SCALAR


def is_worked_on(code: Code, found: ElementLoop) -> bool:
    """Return whether the body passes each row to torch or a model: rows are then large, or must be passed singly."""
    return any(
        isinstance(node, ast.Call)
        and (
            code.callee_kind(node) == MODULE
            or code.full_name(node.func).startswith("torch.")
            or last_name(node.func) in _LARGE
        )
        for statement in found.loop.body
        for node in walk(statement)
    )


def reads_elements(found: ElementLoop, single: bool = False) -> bool:
    """Match `.item()`, `.tolist()` and their like in the body; with `single`, only `.item()`."""
    names = ("item",) if single else _READS
    return any(
        isinstance(node, ast.Call) and last_name(node.func) in names
        for statement in found.loop.body
        for node in walk(statement)
    )


def counts(found: ElementLoop) -> list[str]:
    """Return what the body counts: `correct += 1` under a condition that compares elements, or `matrix[t][p] += 1`."""
    nodes = [node for statement in found.loop.body for node in walk(statement)]
    places = {
        part.id
        for node in nodes
        if isinstance(node, ast.Subscript)
        for part in walk(node.slice)
        if isinstance(part, ast.Name)
    }
    return [
        ast.unparse(node.target)
        for node in nodes
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and _is_count(node, found)
        if not (isinstance(node.target, ast.Name) and node.target.id in places)  # where the next element goes
    ]


def _is_count(node: ast.AugAssign, found: ElementLoop) -> bool:
    by_one = isinstance(node.value, ast.Constant) and node.value.value == 1
    compared = any(isinstance(part, ast.Compare) for part in walk(node.value))
    return (by_one or compared) and (compared or _decides(found))


def _decides(found: ElementLoop) -> bool:
    """Return whether some condition, or the index of the counter, depends on an element."""
    words = derived(found)
    tests = [
        node.test for statement in found.loop.body for node in walk(statement) if isinstance(node, ast.If | ast.IfExp)
    ]
    places = [
        node.target
        for statement in found.loop.body
        for node in walk(statement)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript)
    ]
    return any(isinstance(node, ast.Name) and node.id in words for part in (*tests, *places) for node in walk(part))


def derived(found: ElementLoop) -> set[str]:
    """Return the names in the body that hold an element, its index, or something derived from them."""
    words = {*found.names, *([found.index] if found.index else [])}
    for statement in found.loop.body:
        if isinstance(statement, ast.Assign) and mentions(statement.value, words):
            words |= {node.id for target in statement.targets for node in walk(target) if isinstance(node, ast.Name)}
    return words


def is_sequential(found: ElementLoop) -> bool:
    """Match iterations that need the previous one, as `state = step(state, x[i])` does; sums and lists do not."""
    set_here = {
        target.id
        for statement in found.loop.body
        for node in walk(statement)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if any(_builds_on(node) for statement in found.loop.body for node in walk(statement)):
        return True
    first_read: set[str] = set()
    written: set[str] = set()
    for statement in found.loop.body:
        for node in _in_order(statement):
            if isinstance(node.ctx, ast.Store):
                written.add(node.id)
            elif node.id in set_here and node.id not in written:
                first_read.add(node.id)
    return bool(first_read)


def _builds_on(node: ast.AST) -> bool:
    """Match `first += time[i] * ~first.bool()`, where the increment depends on the current value."""
    if not isinstance(node, ast.AugAssign) or not isinstance(node.target, ast.Name):
        return False
    return mentions(node.value, {node.target.id})


def _in_order(statement: ast.stmt) -> list[ast.Name]:
    """Return the names of a statement in evaluation order: values before targets."""
    if isinstance(statement, ast.Assign):
        parts: list[ast.AST] = [statement.value, *statement.targets]
    else:
        parts = [statement]
    return [node for part in parts for node in walk(part) if isinstance(node, ast.Name)]

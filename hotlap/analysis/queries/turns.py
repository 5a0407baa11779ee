"""Tells what an iteration over batches, or a training step, gets, and what it takes out of that."""

from __future__ import annotations

import ast

from hotlap.analysis.frequency.heat import Side
from hotlap.analysis.parse.calls import is_next
from hotlap.analysis.parse.terms import BATCH, EXTENT, HOST, MODULE, NUMBER, TENSOR, TEXT, UNKNOWN, Term
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.arguments import begins_with
from hotlap.analysis.queries.code import Code, Repeated, last_name
from hotlap.analysis.queries.samples import mentions


def of_turn(code: Code, loop: Repeated) -> set[str]:
    """Return the names that hold a batch, from the loop itself or next(…), or something taken out of one."""
    given = names_of(loop.target) if isinstance(loop, ast.For) else set()
    counts = isinstance(loop, ast.While) or (isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) == "range")
    draws = counts and code.heat(loop.body[0]).side is Side.TRAIN
    for node in (part for statement in loop.body for part in walk(statement)):
        if isinstance(node, ast.Assign) and (
            is_next(node.value)
            or begins_with(node.value, given)
            or _is_unpacked(code, node.value, given)
            or (draws and _is_drawn(code, node.value))
            or _is_entry(code, node.value, given)
        ):
            given |= {name for target in node.targets for name in names_of(target)}
    return given


def drawn(code: Code, loop: Repeated) -> set[str]:
    """Return the names set by functions of the project in the loop: `x, y = sample(paths)`."""
    return {
        name
        for node in (part for statement in loop.body for part in walk(statement))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if any(
            not function.name.endswith("__")
            for function in code.project.targets(code.asked(node.value.func), code.path)
        )
        for target in node.targets
        for name in names_of(target)
    }


def _is_entry(code: Code, value: ast.expr, given: set[str]) -> bool:
    """Match `batches[i]`, where batches are stored in a list and i counts the iterations."""
    numbered = isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Name) and value.slice.id in given
    return numbered and code.kind(value) in (UNKNOWN, BATCH, HOST) and code.kind(value.value) == UNKNOWN  # type: ignore[attr-defined]


def names_of(node: ast.AST) -> set[str]:
    return {part.id for part in walk(node) if isinstance(part, ast.Name)}


def is_taken_from(code: Code, value: ast.expr, given: set[str]) -> bool:
    """Match `batch["image"]`, `batch[0]`, and functions that take the batch apart: `self.parse(batch)`."""
    if isinstance(value, ast.Tuple):
        return all(is_taken_from(code, part, given) for part in value.elts)
    if isinstance(value, ast.Call):
        return code.kind(value) == UNKNOWN and _is_handed(value, given)
    return begins_with(value, given)


def _is_unpacked(code: Code, value: ast.expr, given: set[str]) -> bool:
    """Match `unpack(batch)`: a function, not a model, takes the batch apart without moving it."""
    if not isinstance(value, ast.Call) or not _is_handed(value, given) or not _may_be_on_host(code.term(value)):
        return False
    if code.callee_kind(value) == MODULE or not isinstance(value.func, ast.Name | ast.Attribute):
        return False
    name = code.full_name(value.func)
    return bool(name) or bool(code.project.targets(code.asked(value.func), code.path))


def _is_drawn(code: Code, value: ast.expr) -> bool:
    """Match `get_batch("train")` and `buffer.sample(32)` in a counting training loop: no tensor goes in."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name | ast.Attribute):
        return False
    if code.term(value) != UNKNOWN or last_name(value.func)[:1].isupper() or code.callee_kind(value) != UNKNOWN:
        return False
    receiver = code.kind(value.func.value) if isinstance(value.func, ast.Attribute) else UNKNOWN
    given = [*value.args, *(word.value for word in value.keywords)]
    plain = all(
        isinstance(argument, ast.Constant) or code.kind(argument) in (NUMBER, EXTENT, TEXT) for argument in given
    )
    return plain and bool(given) and receiver not in (TENSOR, MODULE) and not code.full_name(value.func)


def _may_be_on_host(term: Term) -> bool:
    if isinstance(term, tuple):
        return term[0] in ("tuple", "list", "dict", "join") and all(map(_may_be_on_host, term[1:]))
    return term not in (TENSOR, MODULE)


def _is_handed(call: ast.Call, given: set[str]) -> bool:
    return any(begins_with(argument, given) for argument in call.args)


def is_of_mixture(code: Code, node: ast.expr) -> bool:
    """Match `for x in batch` if some parts of the batch are certainly on the host, since the others are as well."""
    if not isinstance(node, ast.Name):
        return False
    for outer in code.ancestors(node):
        if isinstance(outer, ast.stmt):
            return False
        for part in getattr(outer, "generators", ()):
            if isinstance(part.target, ast.Name) and part.target.id == node.id:
                held = code.term(part.iter)
                return isinstance(held, tuple) and held[0] == "tuple" and bool({HOST, BATCH} & set(held[1:]))
    return False


def is_fetched(code: Code, root: ast.Name, names: set[str]) -> bool:
    """Match `batch = next(batches)` in a function that is called every batch."""
    function = code.function(root)
    return function is not None and any(
        isinstance(node, ast.Assign) and is_next(node.value) and mentions(node.targets[0], names)
        for node in walk(function)
        if getattr(node, "lineno", root.lineno) < root.lineno
    )


def is_mapping(code: Code, moved: ast.expr) -> bool:
    """Match a batch that is indexed by names: an object of some library, whose `.to` may not take this argument."""
    if not isinstance(moved, ast.Name):
        return False
    scope = code.function(moved) or code.tree
    return any(_names_part(node, moved.id) for node in walk(scope))


def _names_part(node: ast.AST, name: str) -> bool:
    """Match `batch["x"]` and `**batch`."""
    if isinstance(node, ast.Subscript):
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return isinstance(key, str) and isinstance(node.value, ast.Name) and node.value.id == name
    spread_out = isinstance(node, ast.keyword) and node.arg is None
    return spread_out and isinstance(node.value, ast.Name) and node.value.id == name  # type: ignore[attr-defined]

"""Works out how many turns a loop makes, where the source says so."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Definition, keyword, last_name
from hotlap.analysis.queries.defaults import default, is_given
from hotlap.analysis.queries.mappings import mapping
from hotlap.analysis.queries.samples import set_to

_AROUND = ("enumerate", "tqdm", "track", "progress_bar")
_DEEPEST = 4  # names that stand for other names


def turns(code: Code, loop: ast.For) -> int | None:
    """Return the number of turns of a loop over a range, or None if it cannot be known."""
    over = loop.iter
    while isinstance(over, ast.Call) and last_name(over.func) in _AROUND and over.args:
        over = over.args[0]
    if isinstance(over, ast.List | ast.Tuple):
        return len(over.elts)
    if not isinstance(over, ast.Call) or last_name(over.func) not in ("range", "trange"):
        return None
    bounds = [number(code, bound) for bound in over.args[:3]]
    if not bounds or None in bounds:
        return None
    known = [bound for bound in bounds if bound is not None]
    return len(range(*known)) if len(known) < 3 or known[2] else None


def number(code: Code, value: ast.expr, deep: int = 0) -> int | None:
    """Return the whole number that an expression has in every run without options, or None."""
    if deep > _DEEPEST:
        return None
    if isinstance(value, ast.Constant):
        return value.value if type(value.value) is int else None
    if isinstance(value, ast.BinOp):
        left, right = number(code, value.left, deep + 1), number(code, value.right, deep + 1)
        return _computed(value.op, left, right) if left is not None and right is not None else None
    found = {number(code, source, deep + 1) for source in _sources(code, value)}
    return max((known for known in found if known is not None), default=None) if None not in found else None


def _computed(operator: ast.operator, left: int, right: int) -> int | None:
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    return left * right if isinstance(operator, ast.Mult) else None


def _sources(code: Code, value: ast.expr) -> Iterator[ast.expr]:
    """Yield what a name, an option, a choice or an entry of a table may stand for; nothing if that is unknown."""
    if isinstance(value, ast.IfExp):
        yield from (value.body, value.orelse)
        return
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
        entries, whole = mapping(code, value, value.value)
        entry = entries.get(str(value.slice.value))
        yield from [entry] if whole and entry is not None else []
        return
    if isinstance(value, ast.Attribute):
        yield from _options(code, value.attr)
        return
    if not isinstance(value, ast.Name):
        return
    function = code.function(value)
    if function is not None and value.id in _arguments(function):
        known = default(code, value)
        yield from [known] if known is not None and not is_given(code, value) else []
        return
    for loop in code.loops(value):
        if isinstance(loop, ast.For) and value.id in code.stored(loop.target):
            yield from _listed(loop)
            return
    yield from set_to(code, value)


def _arguments(function: Definition) -> set[str]:
    return {node.arg for node in walk(function.args) if isinstance(node, ast.arg)}


def _listed(loop: ast.For) -> Iterator[ast.expr]:
    """Yield the elements of a list that a loop goes over, also with `enumerate`."""
    over = loop.iter
    while isinstance(over, ast.Call) and last_name(over.func) in _AROUND and over.args:
        over = over.args[0]
    yield from over.elts if isinstance(over, ast.List | ast.Tuple) else ()


def _options(code: Code, name: str) -> Iterator[ast.expr]:
    """Yield the default of `--name` on the command line."""
    for call in code.calls("add_argument"):
        written = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
        named = any(isinstance(text, str) and text.lstrip("-").replace("-", "_") == name for text in written)
        given = keyword(call, "default")
        if named and given is not None:
            yield given

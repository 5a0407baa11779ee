"""Finds what gets a value that is made once: through names, tables, attributes, and functions that return it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.names.classes import Reference
from hotlap.analysis.parse.statements import is_static
from hotlap.analysis.parse.terms import Term
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.samples import dotted

_DEEPEST = 4  # aliases to follow
_HOLDING = (ast.IfExp, ast.BoolOp, ast.Dict, ast.Tuple, ast.keyword)
_COMPOSING = ("Compose", "Sequential")
_PARTS = ("part", "index", "item", "join")


def taking(code: Code, made: ast.expr, deep: int = 0) -> Iterator[tuple[Term, str]]:
    """Yield what is called with the value, directly or through what holds it, and in which file."""
    here: ast.AST = made
    parent = code.parent(here)
    while isinstance(parent, _HOLDING):
        here, parent = parent, code.parent(parent)
    if isinstance(parent, ast.Call) and here is not parent.func:
        if last_name(parent.func) in _COMPOSING and deep < _DEEPEST:
            yield from taking(code, parent, deep + 1)
        else:
            yield code.asked(parent.func), code.path
            yield from _forwarded(code, parent, here)
    elif isinstance(parent, ast.Return):
        known = code.reference(made)
        yield from _returned(code, known) if known is not None else ()
    elif isinstance(parent, ast.Assign) and deep < _DEEPEST:
        for target in parent.targets:
            for use in _uses(code, made, target):
                yield from taking(code, use, deep + 1)
            if isinstance(target, ast.Name) and code.function(made) is None:
                yield from _imported(code, target.id)


def _forwarded(code: Code, call: ast.Call, given: ast.AST) -> Iterator[tuple[Term, str]]:
    """Yield what a function of the project passes the argument on to: `get_loaders(path, transform)`."""
    name = given.arg if isinstance(given, ast.keyword) else None
    number = next((place for place, argument in enumerate(call.args) if argument is given), -1)
    for target in code.project.targets(code.asked(call.func), code.path):
        yield from _passed(code, target, number, name)


def _passed(code: Code, target: Reference, number: int, name: str | None, deep: int = 0) -> Iterator[tuple[Term, str]]:
    """Yield what the function calls with the argument of that place or name, also through other functions."""
    function = code.project.function(target)
    shift = 1 if function.owner and not is_static(function) else 0
    place = function.parameters.index(name) if name in function.parameters else number + shift if number >= 0 else -1
    parameter = ("param", function.name, place)
    for call in function.calls if place >= 0 and deep < _DEEPEST else ():
        places: list[tuple[int, str | None]] = [
            (at, None) for at, term in enumerate(call.arguments) if term == parameter
        ]
        places += [(-1, word) for word, term in call.keywords if term == parameter]
        if places:
            yield call.callee, target.path
        for inner in code.project.targets(call.callee, target.path) if places else ():
            if inner != target:
                yield from _passed(code, inner, *places[0], deep + 1)


def _imported(code: Code, name: str) -> Iterator[tuple[Term, str]]:
    """Yield calls in other files that get a name of this one: `from transforms import train_transform`."""
    module = code.project.files[code.path].module
    wanted = {f"{module}.{name}", f"@{module}.{name}", f"{module.rpartition('.')[2]}.{name}"}
    for path, summary in code.project.files.items():
        known = {term[1] for term in summary.names.values() if isinstance(term, tuple) and term[0] == "name"}
        heads = {full.rpartition(".")[0] for full in wanted}
        if path == code.path or not known & (wanted | heads):
            continue
        for function in summary.functions.values():
            for call in function.calls:
                given = (*call.arguments, *(term for _, term in call.keywords))
                if any(isinstance(term, tuple) and term[0] == "name" and term[1] in wanted for term in given):
                    yield call.callee, path


def _uses(code: Code, made: ast.expr, target: ast.expr) -> Iterator[ast.expr]:
    """Yield the places where the name or attribute, or an entry of it, is read."""
    name = dotted(target)
    if not name:
        return
    within = next((above for above in code.ancestors(made) if isinstance(above, ast.ClassDef)), None)
    own = name.startswith("self.")
    scope = (within if own else code.function(made)) or code.tree
    for node in walk(scope):
        read = isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
        if read and dotted(node) == name:  # type: ignore[arg-type]
            outer = code.parent(node)
            entry = isinstance(outer, ast.Subscript) and outer.value is node
            yield outer if entry else node  # type: ignore[misc]


def _returned(code: Code, function: Reference) -> Iterator[tuple[Term, str]]:
    """Yield the project's calls that get what the function returns, or a part of it."""
    project = code.project
    for path in {path for path, _ in project.callers.get(function, ())}:
        for caller in project.files[path].functions.values():
            for call in caller.calls:
                given = (*call.arguments, *(term for _, term in call.keywords))
                if any(_is_of(code, term, path, function) for term in given):
                    yield call.callee, path


def _is_of(code: Code, term: Term, path: str, function: Reference) -> bool:
    if not isinstance(term, tuple):
        return False
    if term[0] in _PARTS:
        return any(_is_of(code, part, path, function) for part in term[1:])
    return term[0] == "call" and function in code.project.targets(term[1], path)

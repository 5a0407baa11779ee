"""Who is given something that is made once: by names, tables, attributes, and functions that return it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.source.classes import Reference
from hotlap.source.code import Code, last_name
from hotlap.source.samples import dotted
from hotlap.source.terms import Term
from hotlap.source.walking import walk

_DEEPEST = 4  # names of names
_HOLDING = (ast.IfExp, ast.BoolOp, ast.Dict, ast.Tuple, ast.keyword)
_COMPOSING = ("Compose", "Sequential")
_PARTS = ("part", "index", "item", "join")


def taking(code: Code, made: ast.expr, deep: int = 0) -> Iterator[tuple[Term, str]]:
    """What is called with it, and in which file: straight, or by whatever holds it."""
    here: ast.AST = made
    parent = code.parent(here)
    while isinstance(parent, _HOLDING):
        here, parent = parent, code.parent(parent)
    if isinstance(parent, ast.Call) and here is not parent.func:
        if last_name(parent.func) in _COMPOSING and deep < _DEEPEST:
            yield from taking(code, parent, deep + 1)
        else:
            yield code.asked(parent.func), code.path
    elif isinstance(parent, ast.Return):
        known = code.reference(made)
        yield from _returned(code, known) if known is not None else ()
    elif isinstance(parent, ast.Assign) and deep < _DEEPEST:
        for target in parent.targets:
            for one in _uses(code, made, target):
                yield from taking(code, one, deep + 1)


def _uses(code: Code, made: ast.expr, target: ast.expr) -> Iterator[ast.expr]:
    """Where the name, or the attribute of the object, is read: itself, or an entry of it."""
    name = dotted(target)
    if not name:
        return
    within = next((one for one in code.ancestors(made) if isinstance(one, ast.ClassDef)), None)
    own = name.startswith("self.")
    scope = (within if own else code.function(made)) or code.tree
    for node in walk(scope):
        read = isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
        if read and dotted(node) == name:  # type: ignore[arg-type]
            outer = code.parent(node)
            entry = isinstance(outer, ast.Subscript) and outer.value is node
            yield outer if entry else node  # type: ignore[misc]


def _returned(code: Code, function: Reference) -> Iterator[tuple[Term, str]]:
    """Calls of the project that get what the function returns, or a part of it."""
    project = code.project
    for path in {path for path, _ in project.callers.get(function, ())}:
        for one in project.files[path].functions.values():
            for call in one.calls:
                given = (*call.arguments, *(term for _, term in call.keywords))
                if any(_is_of(code, term, path, function) for term in given):
                    yield call.callee, path


def _is_of(code: Code, term: Term, path: str, function: Reference) -> bool:
    if not isinstance(term, tuple):
        return False
    if term[0] in _PARTS:
        return any(_is_of(code, part, path, function) for part in term[1:])
    return term[0] == "call" and function in code.project.targets(term[1], path)

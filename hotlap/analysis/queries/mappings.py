"""Works out what a `**mapping` holds, as far as the file says."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.samples import dotted, set_to

Entries = dict[str, ast.expr]
_SETTING = (ast.AnnAssign, ast.AugAssign)
_DEEPEST = 4  # mappings made of mappings


def mapping(code: Code, call: ast.AST, value: ast.expr, deep: int = 0) -> tuple[Entries, bool]:
    """Return the known entries, and whether those are all. Entries that depend on a condition count as given."""
    if deep > _DEEPEST:
        return {}, False
    if isinstance(value, ast.Dict):
        return _displayed(code, call, value, deep)
    if isinstance(value, ast.IfExp | ast.BoolOp):
        parts = [value.body, value.orelse] if isinstance(value, ast.IfExp) else value.values
        return _merged(mapping(code, call, part, deep + 1) for part in parts)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        return _merged(mapping(code, call, side, deep + 1) for side in (value.left, value.right))
    if isinstance(value, ast.Call):
        return _called(code, call, value, deep)
    if isinstance(value, ast.Name | ast.Attribute):
        return _merged(_put(code, call, value, deep))
    return {}, False


def _merged(parts: Iterator[tuple[Entries, bool]]) -> tuple[Entries, bool]:
    entries: Entries = {}
    whole, some = True, False
    for known, complete in parts:
        entries.update(known)
        whole, some = whole and complete, True
    return entries, whole and some


def _displayed(code: Code, call: ast.AST, value: ast.Dict, deep: int) -> tuple[Entries, bool]:
    entries: Entries = {}
    whole = True
    for key, entry in zip(value.keys, value.values, strict=True):
        if isinstance(key, ast.Constant):
            entries[str(key.value)] = entry
        elif key is None:
            known, complete = mapping(code, call, entry, deep + 1)
            entries.update(known)
            whole = whole and complete
        else:
            whole = False
    return entries, whole


def _called(code: Code, call: ast.AST, value: ast.Call, deep: int) -> tuple[Entries, bool]:
    """Return the entries of `dict(…)` and `options.copy()`."""
    if isinstance(value.func, ast.Attribute) and value.func.attr == "copy" and not value.args:
        return mapping(code, call, value.func.value, deep + 1)
    if last_name(value.func) not in ("dict", "deepcopy", "copy"):
        return {}, False
    entries, whole = (
        _merged(mapping(code, call, argument, deep + 1) for argument in value.args) if value.args else ({}, True)
    )
    for word in value.keywords:
        if word.arg is not None:
            entries[word.arg] = word.value
        else:
            known, complete = mapping(code, call, word.value, deep + 1)
            entries, whole = {**entries, **known}, whole and complete
    return entries, whole


def _put(code: Code, call: ast.AST, value: ast.Name | ast.Attribute, deep: int) -> Iterator[tuple[Entries, bool]]:
    """Yield the entries that are put into a variable of this function or file, or into an attribute of the object."""
    scope = code.function(call) or code.tree
    name = dotted(value)
    own = name.startswith("self.")
    arguments, every = _entries_of(scope)
    made = [] if own else every.get(name, [])
    if isinstance(value, ast.Name) and value.id in arguments:
        yield {}, False
    elif own or not made:
        made = [*set_to(code, value), *_additions(code).get(name, ())]
    for source in made:
        yield mapping(code, call, source, deep + 1)


@lru_cache(maxsize=16)
def _entries_of(scope: ast.AST) -> tuple[set[str], dict[str, list[ast.expr]]]:
    """Return the arguments in a function or file, and what each name in it is set to, or gets put into it."""
    arguments, made = set(), defaultdict(list)
    for node in walk(scope):
        if isinstance(node, ast.arg):
            arguments.add(node.arg)
        for name, part in _made(node):
            made[name].append(part)
    return arguments, made


@lru_cache(maxsize=2)
def _additions(code: Code) -> dict[str, list[ast.expr]]:
    """Return what is put into each name anywhere in the file."""
    found = defaultdict(list)
    for node in code.nodes(ast.Call, ast.Assign):
        for name, part in _added(node):
            found[name].append(part)
    return found


def _made(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a statement sets or puts something into, and what."""
    if isinstance(node, ast.Assign):
        yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, _SETTING) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value
    yield from _added(node)


def _added(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Match `options["shuffle"] = True`, `options.update(…)` and `options.setdefault("shuffle", True)`."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                yield dotted(target.value), ast.Dict(keys=[target.slice], values=[node.value])
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "update":
            name = dotted(node.func.value)
            yield from ((name, argument) for argument in node.args)
            yield name, ast.Call(ast.Name("dict"), [], node.keywords)
        elif node.func.attr == "setdefault" and len(node.args) == 2:
            yield dotted(node.func.value), ast.Dict(keys=[node.args[0]], values=[node.args[1]])


def assigned(code: Code, name: str) -> list[ast.expr]:
    """Return everything the file sets a plain name to."""
    return [
        node.value
        for node in code.nodes(ast.Assign)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name
    ]

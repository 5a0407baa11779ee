"""Calls that hand a function's own `**options` on: who calls the function decides about them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hotlap.analysis.parse.calls import last_name
from hotlap.analysis.parse.facts import Handing
from hotlap.analysis.parse.terms import Term
from hotlap.analysis.parse.tree import walk

BASE: Term = ("base",)  # super().__init__
ELSEWHERE = "elsewhere"  # given, nobody knows as what
_SOMEHOW: tuple[str, Any] = (ELSEWHERE, None)
_PUTS = ("setdefault", "update", "pop")


def handings(node: ast.FunctionDef | ast.AsyncFunctionDef, plain: Callable[[ast.expr], Term]) -> tuple[Handing, ...]:
    """The calls of a function that get its `**options`, with what else they get."""
    if node.args.kwarg is None:
        return ()
    name = node.args.kwarg.arg
    nodes = list(walk(node))
    calls = [one for one in nodes if isinstance(one, ast.Call) and _gets(one, name)]
    if not calls:
        return ()
    given_before = dict(_partials(nodes))
    defaults = dict(_defaults(node.args))
    given = {one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    put = dict.fromkeys(_put(nodes, name), _SOMEHOW)
    return tuple(
        Handing(
            BASE if is_base(one.func) else plain(one.func),
            tuple(_source(value, given, defaults) for value in one.args if not isinstance(value, ast.Starred)),
            tuple({**_before(one, given_before), **dict(_words(one, given, defaults)), **put}.items()),
        )
        for one in calls
    )


def _partials(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, ast.Call]]:
    """`make = partial(DataLoader, pin_memory=True)`: names, and what they have got already."""
    for one in nodes:
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Call) and last_name(one.value.func) == "partial":
            yield from ((target.id, one.value) for target in one.targets if isinstance(target, ast.Name))


def _before(call: ast.Call, partials: dict[str, ast.Call]) -> dict[str, tuple[str, Any]]:
    made = partials.get(call.func.id) if isinstance(call.func, ast.Name) else None
    return dict(_words(made, set(), {})) if made is not None else {}


def is_base(node: ast.expr) -> bool:
    """`super().__init__`, `super(Loader, self).__init__`."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "__init__"
        and isinstance(node.value, ast.Call)
        and last_name(node.value.func) == "super"
    )


def _gets(call: ast.Call, name: str) -> bool:
    return any(word.arg is None and _spreads(word.value, name) for word in call.keywords)


def _spreads(value: ast.expr, name: str) -> bool:
    """`**options`, also as part of `**{**options, "shuffle": True}`."""
    if isinstance(value, ast.Dict):
        return any(key is None and _spreads(one, name) for key, one in zip(value.keys, value.values, strict=True))
    return isinstance(value, ast.Name) and value.id == name


def _words(call: ast.Call, given: set[str], defaults: dict[str, Any]) -> Iterator[tuple[str, tuple[str, Any]]]:
    for word in call.keywords:
        if word.arg is not None:
            yield word.arg, _source(word.value, given, defaults)
        elif isinstance(word.value, ast.Dict):
            for key, value in zip(word.value.keys, word.value.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield str(key.value), _source(value, given, defaults)


def _source(value: ast.expr, given: set[str], defaults: dict[str, Any]) -> tuple[str, Any]:
    """An argument of the function, with its default; a constant; or something else."""
    if isinstance(value, ast.Constant):
        return "constant", value.value
    if isinstance(value, ast.Name) and value.id in given:
        return f"argument {value.id}", defaults.get(value.id, ELSEWHERE)
    return _SOMEHOW


def _defaults(arguments: ast.arguments) -> Iterator[tuple[str, Any]]:
    plain = [*arguments.posonlyargs, *arguments.args]
    pairs = zip(reversed(plain), reversed(arguments.defaults), strict=False)
    for one, default in (*pairs, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)):
        if isinstance(default, ast.Constant):
            yield one.arg, default.value


def _put(nodes: Sequence[ast.AST], name: str) -> Iterator[str]:
    """What the function itself puts into its options."""
    for one in nodes:
        if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store) and last_name(one.value) == name:
            if isinstance(one.slice, ast.Constant):
                yield str(one.slice.value)
        elif isinstance(one, ast.Call) and _is_method(one.func, name):
            yield from (str(value.value) for value in one.args[:1] if isinstance(value, ast.Constant))
            yield from (word.arg for word in one.keywords if word.arg)


def _is_method(node: ast.expr, name: str) -> bool:
    named = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    return named and node.attr in _PUTS  # type: ignore[attr-defined]

"""Finds calls that forward a function's own `**options`, whose contents its callers decide."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hotlap.analysis.parse.calls import last_name
from hotlap.analysis.parse.facts import KeywordForwarding
from hotlap.analysis.parse.terms import Term
from hotlap.analysis.parse.tree import walk

BASE: Term = ("base",)  # super().__init__
ELSEWHERE = "elsewhere"  # passed, with an unknown value
_SOMEHOW: tuple[str, Any] = (ELSEWHERE, None)
_PUTS = ("setdefault", "update", "pop")


def keyword_forwardings(
    node: ast.FunctionDef | ast.AsyncFunctionDef, plain: Callable[[ast.expr], Term]
) -> tuple[KeywordForwarding, ...]:
    """Return the calls in a function that forward its `**options`, with their other arguments."""
    if node.args.kwarg is None:
        return ()
    name = node.args.kwarg.arg
    nodes = list(walk(node))
    calls = [call for call in nodes if isinstance(call, ast.Call) and _gets(call, name)]
    if not calls:
        return ()
    given_before = dict(_partials(nodes))
    defaults = dict(_defaults(node.args))
    given = {argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    put = dict.fromkeys(_put(nodes, name), _SOMEHOW)
    return tuple(
        KeywordForwarding(
            BASE if is_base(call.func) else plain(call.func),
            tuple(_source(value, given, defaults) for value in call.args if not isinstance(value, ast.Starred)),
            tuple({**_before(call, given_before), **dict(_words(call, given, defaults)), **put}.items()),
        )
        for call in calls
    )


def _partials(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, ast.Call]]:
    """Yield names such as `make = partial(DataLoader, pin_memory=True)` and the call that binds their arguments."""
    for node in nodes:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and last_name(node.value.func) == "partial"
        ):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))


def _before(call: ast.Call, partials: dict[str, ast.Call]) -> dict[str, tuple[str, Any]]:
    made = partials.get(call.func.id) if isinstance(call.func, ast.Name) else None
    return dict(_words(made, set(), {})) if made is not None else {}


def is_base(node: ast.expr) -> bool:
    """Match `super().__init__` and `super(Loader, self).__init__`."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "__init__"
        and isinstance(node.value, ast.Call)
        and last_name(node.value.func) == "super"
    )


def _gets(call: ast.Call, name: str) -> bool:
    return any(word.arg is None and _spreads(word.value, name) for word in call.keywords)


def _spreads(value: ast.expr, name: str) -> bool:
    """Match `**options`, also as part of `**{**options, "shuffle": True}`."""
    if isinstance(value, ast.Dict):
        return any(key is None and _spreads(part, name) for key, part in zip(value.keys, value.values, strict=True))
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
    """Describe a value: an argument of the function with its default, a constant, or something else."""
    if isinstance(value, ast.Constant):
        return "constant", value.value
    if isinstance(value, ast.Name) and value.id in given:
        return f"argument {value.id}", defaults.get(value.id, ELSEWHERE)
    return _SOMEHOW


def _defaults(arguments: ast.arguments) -> Iterator[tuple[str, Any]]:
    plain = [*arguments.posonlyargs, *arguments.args]
    pairs = zip(reversed(plain), reversed(arguments.defaults), strict=False)
    for argument, default in (*pairs, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)):
        if isinstance(default, ast.Constant):
            yield argument.arg, default.value


def _put(nodes: Sequence[ast.AST], name: str) -> Iterator[str]:
    """Yield the keys that the function itself puts into its options."""
    for node in nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and last_name(node.value) == name:
            if isinstance(node.slice, ast.Constant):
                yield str(node.slice.value)
        elif isinstance(node, ast.Call) and _is_method(node.func, name):
            yield from (str(value.value) for value in node.args[:1] if isinstance(value, ast.Constant))
            yield from (word.arg for word in node.keywords if word.arg)


def _is_method(node: ast.expr, name: str) -> bool:
    named = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    return named and node.attr in _PUTS  # type: ignore[attr-defined]

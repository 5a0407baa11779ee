"""Looks up the defaults of arguments, and whether callers override them."""

from __future__ import annotations

import ast

from hotlap.analysis.names.modules import argument
from hotlap.analysis.parse.statements import is_static
from hotlap.analysis.queries.code import Code


def default(code: Code, name: ast.Name) -> ast.expr | None:
    """Return the default of an argument of the enclosing function."""
    function = code.function(name)
    if function is None:
        return None
    plain = [*function.args.posonlyargs, *function.args.args]
    pairs = [*zip(plain[::-1], function.args.defaults[::-1], strict=False)]
    pairs += [
        (parameter, value)
        for parameter, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        if value
    ]
    return next((value for parameter, value in pairs if parameter.arg == name.id), None)


def is_given(code: Code, name: ast.Name) -> bool | None:
    """Return whether any caller in the project passes the argument, or None if nobody calls the function."""
    known = code.reference(name)
    facts = code.project.function(known) if known is not None else None
    if known is None or facts is None or name.id not in facts.parameters:
        return None
    shift = 1 if facts.owner and not is_static(facts) else 0
    number = facts.parameters.index(name.id) - shift
    callers = code.project.callers.get(known, ())
    if not callers:
        return None
    return any(argument(call, number, name.id) is not None or "**" in dict(call.keywords) for _, call in callers)


def is_left_at(code: Code, value: ast.expr | None, wanted: object) -> bool:
    """Match an argument of the enclosing function with this default, which no call in the project passes."""
    known = default(code, value) if isinstance(value, ast.Name) else None
    left = isinstance(known, ast.Constant) and known.value is wanted
    return left and isinstance(value, ast.Name) and is_given(code, value) is False

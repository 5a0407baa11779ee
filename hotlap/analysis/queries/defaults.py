"""Arguments that are what they are unless somebody says otherwise."""

from __future__ import annotations

import ast

from hotlap.analysis.names.modules import argument
from hotlap.analysis.parse.statements import is_static
from hotlap.analysis.queries.code import Code


def default(code: Code, name: ast.Name) -> ast.expr | None:
    """What an argument of the function is, unless given."""
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
    """Whether some caller in the project gives the argument. None where nobody calls the function."""
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

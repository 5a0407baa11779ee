"""Do the arithmetic of the lambda on the whole column."""

from __future__ import annotations

from typing import cast

import libcst as cst
from libcst import matchers

from hotlap.analysis.edits.place import CannotFix, Place


def fix(place: Place) -> None:
    call = place.node(cst.Call)
    function, argument = call.func, call.args[0].value
    if not isinstance(function, cst.Attribute) or not isinstance(argument, cst.Lambda):
        raise CannotFix("it is not column.apply(lambda …)")
    names = matchers.findall(argument.body, matchers.Name(argument.params.params[0].name.value))
    if len(names) != 1:
        raise CannotFix("the value is used more than once")
    expression = cast(cst.BaseExpression, argument.body.deep_replace(names[0], function.value))
    if place.found.hints["within"]:
        expression = expression.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    place.take(call)
    place.change(call, lambda _: expression)

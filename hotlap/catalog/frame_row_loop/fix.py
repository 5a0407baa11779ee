"""The arithmetic of the lambda is done on the whole column."""

from __future__ import annotations

from typing import cast

import libcst as cst
from libcst import matchers

from hotlap.analysis.edits.place import CannotFix, Place


def fix(place: Place) -> None:
    call = place.node(cst.Call)
    function, given = call.func, call.args[0].value
    if not isinstance(function, cst.Attribute) or not isinstance(given, cst.Lambda):
        raise CannotFix("it is not column.apply(lambda …)")
    names = matchers.findall(given.body, matchers.Name(given.params.params[0].name.value))
    if len(names) != 1:
        raise CannotFix("the value is used more than once")
    whole = cast(cst.BaseExpression, given.body.deep_replace(names[0], function.value))
    if place.found.hints["within"]:
        whole = whole.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    place.take(call)
    place.change(call, lambda _: whole)

"""Check only every hundredth batch."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.hundredth import counter, throttle
from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    test = place.node(cst.BaseExpression, place.found.hints["test"])  # type: ignore[type-abstract]
    statement = place.parent(test)
    if not isinstance(statement, cst.If):
        throttle(place, place.line(test))
        return
    text = place.text(test)
    either = isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or) and not test.lpar
    grouped = f"({text})" if either or isinstance(test, cst.IfExp | cst.NamedExpr) else text
    place.replace_once(test, f"{counter(place)} % 100 == 0 and {grouped}")

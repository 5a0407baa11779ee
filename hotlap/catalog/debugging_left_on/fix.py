"""Remove the statement."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    where = place.found.hints["statement"]
    statement = place.node(cst.Assign, where) if place.has(cst.Assign, where) else place.node(cst.Expr, where)
    line = place.line(statement)
    alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
    place.remove(line if alone else statement)

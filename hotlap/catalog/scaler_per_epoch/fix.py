"""Move the statement before the training."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import CannotFix, Place


def fix(place: Place) -> None:
    where = place.found.hints["loop"]
    loop = place.node(cst.For, where) if place.has(cst.For, where) else place.node(cst.While, where)
    line = place.line(place.node(cst.Call))
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        raise CannotFix("the statement shares its line")
    place.before(loop, place.text(line.with_changes(leading_lines=[])).strip())
    place.remove(line)

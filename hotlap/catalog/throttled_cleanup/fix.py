"""Removes the call, with a condition that guards nothing else."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    where = place.found.hints["remove"]
    if place.has(cst.If, where):
        place.remove(place.node(cst.If, where))
    else:
        call = place.node(cst.Call)
        line = place.line(call)
        alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
        place.remove(line if alone else place.parent(call))

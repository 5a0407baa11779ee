"""Remove the switch; of a `with`, keep the body."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import CannotFix, Place


def fix(place: Place) -> None:
    hints = place.found.hints
    if "argument" in hints:
        place.drop_argument(place.node(cst.Call), "detect_anomaly")
    elif "dissolve" in hints:
        _dissolve(place, place.node(cst.With, hints["dissolve"]))
    else:
        call = place.node(cst.Call)
        line = place.line(call)
        alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
        place.remove(line if alone else place.parent(call))


def _dissolve(place: Place, block: cst.With) -> None:
    if not isinstance(block.body, cst.IndentedBlock) or block.body.header.comment or block.body.footer:
        raise CannotFix("its comments would be lost")
    place.take(block)
    place.change(block, _inner)


def _inner(block: cst.With) -> cst.FlattenSentinel[cst.BaseStatement]:
    body = list(block.body.body)
    first = body[0]
    body[0] = first.with_changes(leading_lines=[*block.leading_lines, *getattr(first, "leading_lines", ())])
    return cst.FlattenSentinel([statement for statement in body if isinstance(statement, cst.BaseStatement)])

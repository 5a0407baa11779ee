"""Run the model under autocast, and continue in float32 with what it returns."""

from __future__ import annotations

from typing import Any

import libcst as cst

from hotlap.analysis.edits.place import CannotFix, Place


def fix(place: Place) -> None:
    name = place.found.hints["name"]
    line = place.statement_at(place.found.hints["statement"])
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        raise CannotFix("the statement shares its line")
    device = place.quoted("cuda")
    place.take(line)
    place.change(line, lambda node: _under_autocast(node, f"torch.autocast({device}, dtype=torch.bfloat16)"))
    place.after(line, f"{name} = {name}.float()")


def _under_autocast(line: Any, context: str) -> cst.With:
    return cst.With(
        [cst.WithItem(cst.parse_expression(context))],
        cst.IndentedBlock([line.with_changes(leading_lines=[])]),
        leading_lines=line.leading_lines,
    )

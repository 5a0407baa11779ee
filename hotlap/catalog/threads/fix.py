"""Replaces the assignment with torch.set_num_threads."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    hints = place.found.hints
    assignment = place.node(cst.Assign, hints["statement"])
    expression = cst.Expr(cst.parse_expression(f"torch.set_num_threads({hints['count']})"))
    place.take(assignment)
    place.change(assignment, lambda _: expression)

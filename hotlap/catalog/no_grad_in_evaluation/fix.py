"""Replace no_grad by inference_mode."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import CannotFix, Place


def fix(place: Place) -> None:
    call = place.node(cst.Call)
    if not isinstance(call.func, cst.Attribute):
        raise CannotFix("no_grad is imported by name")
    place.replace(call.func.attr, "inference_mode")

"""inference_mode in its place."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import CannotFix, Place


def fix(place: Place) -> None:
    call = place.node(cst.Call)
    if not isinstance(call.func, cst.Attribute):
        raise CannotFix("imported by its own name")
    place.replace(call.func.attr, "inference_mode")

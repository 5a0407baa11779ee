"""The copy is left out."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import CannotFix, Place


def fix(place: Place) -> None:
    call = place.node(cst.Call)
    if not isinstance(call.func, cst.Attribute):
        raise CannotFix("it is no method")
    inner = call.func.value
    place.take(call)
    place.change(call, lambda _: inner)

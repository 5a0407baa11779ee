"""Remove the call to copy()."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import CannotFix, Place


def fix(place: Place) -> None:
    call = place.node(cst.Call)
    if not isinstance(call.func, cst.Attribute):
        raise CannotFix("it is not a method call")
    inner = call.func.value
    place.take(call)
    place.change(call, lambda _: inner)

"""Name the value where it is first read, and use the name from there on."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    again = place.node(cst.Call)
    first = place.node(cst.Call, place.found.hints["first"])
    name = place.found.hints["name"]
    place.before(place.line(first), f"{name} = {place.text(first)}")
    place.replace(again, name)
    place.replace_once(first, name)

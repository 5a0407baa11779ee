"""Make the tensor on the device."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import Place, with_argument


def fix(place: Place) -> None:
    hints = place.found.hints
    moved, made = place.node(cst.Call), place.node(cst.Call, hints["made"])
    place.take(moved)
    place.change(moved, lambda _: with_argument(made, "device", hints["device"]))

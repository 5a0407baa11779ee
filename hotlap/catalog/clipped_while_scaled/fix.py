"""Divide the gradients before they are clipped."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    place.before(place.line(place.node(cst.Call)), place.found.hints["unscale"])

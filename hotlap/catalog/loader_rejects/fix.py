"""Removes the argument."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    place.drop_argument(place.node(cst.Call), place.found.hints["name"])

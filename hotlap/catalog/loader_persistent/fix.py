"""Sets persistent_workers, so that workers live as long as their loader."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    place.set_argument(place.node(cst.Call), "persistent_workers", place.found.hints["value"])

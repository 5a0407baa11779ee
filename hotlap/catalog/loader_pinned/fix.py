"""Sets pin_memory, so that a thread of the loader pins its batches."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    place.set_argument(place.node(cst.Call), "pin_memory", "True")

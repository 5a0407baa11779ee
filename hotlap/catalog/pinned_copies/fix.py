"""Makes the copy asynchronous and pins the loader's batches."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    place.set_argument(place.node(cst.Call), "non_blocking", "True")
    where = place.found.hints.get("loader")
    if where:
        place.set_argument(place.node(cst.Call, where), "pin_memory", "True")

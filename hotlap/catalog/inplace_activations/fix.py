"""Let the activation overwrite its input."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    place.set_argument(place.node(cst.Call), "inplace", "True")

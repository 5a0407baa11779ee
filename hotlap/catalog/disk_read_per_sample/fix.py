"""Map the file into memory instead of reading all of it."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    place.set_argument(place.node(cst.Call), "mmap_mode", place.quoted("r"))

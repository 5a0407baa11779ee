"""Sets prefetch_factor, so that more batches are ready."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    place.set_argument(place.node(cst.Call), "prefetch_factor", "4")

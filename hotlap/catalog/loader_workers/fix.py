"""Sets num_workers to the number of cores, up to a bound."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    most = place.found.hints.get("workers", "4")
    place.set_argument(place.node(cst.Call), "num_workers", f"min({most}, os.cpu_count() or 1)")
    place.need_import("os")

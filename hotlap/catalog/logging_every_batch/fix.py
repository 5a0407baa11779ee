"""Put the line under `if step % 100 == 0`, and add a counter to the loop if it has none."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.hundredth import throttle
from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    throttle(place, place.line(place.node(cst.Call)))

"""Sets pin_memory where there is a GPU, so that a thread of the loader pins its batches; elsewhere torch would warn."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    value = "torch.cuda.is_available()" if place.imports("torch") else "True"
    place.set_argument(place.node(cst.Call), "pin_memory", value)

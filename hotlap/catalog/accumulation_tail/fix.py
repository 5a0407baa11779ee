"""Let the optimizer step on the last batch too."""

from __future__ import annotations

import libcst as cst

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    kind = cst.Comparison if place.has_here(cst.Comparison) else cst.UnaryOperation
    test = place.node(kind)
    place.replace(test, f"{place.text(test)} or {place.found.hints['also']}")

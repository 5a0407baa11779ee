"""Set it once, before the training."""

from __future__ import annotations

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    setting = f"torch.set_float32_matmul_precision({place.quoted('high')})"
    place.before(place.statement_at(place.found.hints["before"]), setting)

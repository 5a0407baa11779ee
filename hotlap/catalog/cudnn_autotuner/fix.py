"""Set it once, before the training."""

from __future__ import annotations

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    place.before(place.statement_at(place.found.hints["before"]), "torch.backends.cudnn.benchmark = True")

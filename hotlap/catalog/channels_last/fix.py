"""Convert the weights once, before the training: a convolution follows the format of its weights."""

from __future__ import annotations

from hotlap.analysis.edits.place import Place


def fix(place: Place) -> None:
    hints = place.found.hints
    for name in hints["names"].split():
        place.before(place.statement_at(hints["before"]), f"{name}.to(memory_format=torch.channels_last)")

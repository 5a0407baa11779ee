"""Loaders whose batches go to the GPU from pageable memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotlap.model.scanned import Applicability, Confidence
from hotlap.source import loaders, rounds
from hotlap.source.code import Code
from hotlap.source.rule import Found

WORDS = ("oader(", "DataLoader", "num_workers")
_MOVES = re.compile(r"\.cuda\(|\.to\(|[\"']cuda|Trainer\(|Accelerator\(|Fabric\(")


def find(code: Code) -> Iterator[Found]:
    here = bool(_MOVES.search(code.text))
    if not here and not code.project_uses("cuda"):
        return
    for one in loaders.loaders(code):
        if not one.lacks("pin_memory") or loaders.on_device(code, one) or rounds.is_glimpsed(code, one):
            continue
        chosen = "pin_memory" in one.settings
        yield Found(
            one.call,
            "its batches are copied to the GPU from pageable memory, which the copy must wait for",
            "pin them: pin_memory=True",
            Applicability.UNSAFE if chosen else Applicability.SAFE,
            loaders.heat(code, one),
            Confidence.LOW if chosen else None if here else Confidence.MEDIUM,
        )

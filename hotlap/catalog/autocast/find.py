"""Finds training in full precision on a GPU. One finding per program."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.analysis.parse import features
from hotlap.analysis.queries import programs
from hotlap.analysis.queries.code import Code
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Confidence

WORDS = ("backward(", "step(", "Trainer(", "train_", "training")


def find(code: Code) -> Iterator[Found]:
    where = programs.advised(code)
    if where is None or not where.lacks(features.AUTOCAST, features.RECURRENT, features.COMMAND_LINE):
        return
    yield Found(
        where.node,
        "the program trains in float32: nothing in it asks for half precision",
        'run the model under torch.autocast("cuda", dtype=torch.bfloat16), or set the precision of the trainer',
        heat=where.heat,
        confidence=None if where.lacks(features.LAUNCHED) else Confidence.LOW,  # its launcher may ask for it
    )

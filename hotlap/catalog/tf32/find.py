"""Finds programs whose matrix products run in full float32 on a GPU. One finding per program."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.analysis.parse import features
from hotlap.analysis.queries import programs
from hotlap.analysis.queries.code import Code
from hotlap.analysis.queries.rule import Found

WORDS = ("backward(", "step(", "Trainer(", "train_", "training")


def find(code: Code) -> Iterator[Found]:
    where = programs.advised(code)
    if where is None or not where.lacks(features.TF32, features.COMMAND_LINE):
        return
    yield Found(
        where.node,
        "float32 matrix products run without TF32: nothing in the program sets their precision",
        'once, before training: torch.set_float32_matmul_precision("high")',
        heat=where.heat,
    )

"""Finds programs whose matrix products run in full float32 on a GPU. One finding per program."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.analysis.parse import features
from hotlap.analysis.queries import programs
from hotlap.analysis.queries.code import Code
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability

WORDS = ("backward(", "step(", "Trainer(", "train_", "training")
TESTS = False


def find(code: Code) -> Iterator[Found]:
    where = programs.advised(code)
    if where is None or not where.lacks(features.TF32, features.COMMAND_LINE):
        return
    hints = programs.before_training(code, where)
    yield Found(
        where.node,
        "float32 matrix products run without TF32: nothing in the program sets their precision",
        'once, before training: torch.set_float32_matmul_precision("high")',
        Applicability.UNSAFE if hints else Applicability.DISPLAY_ONLY,
        heat=where.heat,
        hints=hints,
    )

"""Finds models that run operation by operation. One finding per program."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.analysis.parse import features
from hotlap.analysis.queries import programs
from hotlap.analysis.queries.code import Code
from hotlap.analysis.queries.rule import Found

WORDS = ("backward(", "step(", "Trainer(", "train_", "training")


def find(code: Code) -> Iterator[Found]:
    where = programs.advised(code)
    if where is None or not where.lacks(features.COMPILE, features.RECURRENT, features.GRAPH_NETWORK):
        return
    if features.COMMAND_LINE not in where.uses:
        yield Found(
            where.node,
            "the model runs operation by operation: nothing in the program compiles it",
            "model = torch.compile(model), and measure it, as hotlap tune does",
            heat=where.heat,
        )

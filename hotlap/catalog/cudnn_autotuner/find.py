"""Finds convolutions whose algorithms are chosen by rule of thumb. One finding per program."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.analysis.parse import features
from hotlap.analysis.queries import programs
from hotlap.analysis.queries.code import Code
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability

WORDS = ("backward(", "step(", "Trainer(", "train_", "training")
TESTS = False

_CONVOLUTIONS = (features.CONVOLUTION, features.CONVOLUTION_1D, features.CONVOLUTION_2D, features.NETWORK)

_SETTLED = (
    features.AUTOTUNER,
    features.RECURRENT,
    features.CHANGING_SHAPES,
    features.PATCHES,
    features.COMMAND_LINE,
)


def find(code: Code) -> Iterator[Found]:
    where = programs.advised(code)
    if where is None or where.lacks(*_CONVOLUTIONS):
        return
    if where.lacks(*_SETTLED):
        hints = programs.before_training(code, where)
        yield Found(
            where.node,
            "cuDNN chooses convolution algorithms by rule of thumb",
            "if all inputs have the same size: torch.backends.cudnn.benchmark = True",
            Applicability.UNSAFE if hints else Applicability.DISPLAY_ONLY,
            heat=where.heat,
            hints=hints,
        )

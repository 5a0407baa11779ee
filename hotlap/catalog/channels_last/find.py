"""Finds convolutions on channels-first memory. One finding per program."""

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
    if where is None or where.lacks(features.CONVOLUTION_2D, features.NETWORK):
        return
    if where.lacks(features.CONVOLUTION_2D) and features.CONVOLUTION_1D in where.uses:
        return  # a network of that name, for signals
    if where.lacks(features.CHANNELS_LAST, features.PATCHES, features.RECURRENT):
        convertible = where.lacks(features.ROWS_FIRST)
        names = programs.models_called(code, where.node)
        hints = {**programs.before_training(code, where), "names": " ".join(names)} if names and convertible else {}
        yield Found(
            where.node,
            "convolutions run on channels-first memory, which their fast kernels have to convert",
            "model.to(memory_format=torch.channels_last), and the same for the batches; it pays most in half precision",
            Applicability.UNSAFE if "before" in hints else Applicability.DISPLAY_ONLY,
            heat=where.heat,
            hints=hints,
        )

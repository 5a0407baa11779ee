"""The errors of the engine, each with a message of one clear line.

EngineError
├── BadRecipe                    a value that cannot be trained with, or two that contradict each other
├── NoDevice                     device="cuda" where torch sees no GPU
├── DataElsewhere                resident data on another device than the model
├── EmptySplit                   a split with no row to train or evaluate on
├── BatchTooLarge                a batch size beyond the rows of the split
├── CaptureFailed                graph="on", and the step cannot be one CUDA graph
├── CompileFailed                compile="fullgraph", and the step is not one graph to the compiler
├── ExportFailed                 the model cannot be exported, or what was exported computes something else
├── OtherProcessFailed           another of the processes that train together has failed or ended
├── NonFiniteLoss                the loss or a weight is no longer finite; names the step and the last good checkpoint
└── CheckpointError
    ├── NothingToResume          no checkpoint where one was requested
    ├── CheckpointDamaged        cut short, changed or not written by the engine; names the last good one
    ├── CheckpointOfAnotherModel its parameters, shapes, data or batch size differ from this run's
    ├── CheckpointsInTheWay      a new run would overwrite the checkpoints of another one
    └── CheckpointNotWritten     the disk refused it

The data side adds its own below EngineError (hotlap/engine/data/errors.py).
"""

from __future__ import annotations

from pathlib import Path


class EngineError(Exception):
    """The message says in one line what happened, with which value, and what to change."""


class BadRecipe(EngineError):
    pass


class NoDevice(EngineError):
    pass


class DataElsewhere(EngineError):
    pass


class EmptySplit(EngineError):
    pass


class BatchTooLarge(EngineError):
    pass


class CaptureFailed(EngineError):
    pass


class CompileFailed(EngineError):
    pass


class ExportFailed(EngineError):
    pass


class OtherProcessFailed(EngineError):
    """Is printed as its message alone, and not at all where the other process prints its own error."""

    is_told = False


class NonFiniteLoss(EngineError):
    """The step is counted from 1 over the whole run; the checkpoint is None if none was saved."""

    def __init__(
        self, step: int, epoch: int, value: float, checkpoint: Path | None, what: str = "the loss is {value} at"
    ) -> None:
        saved = f"last good checkpoint: {checkpoint}" if checkpoint else "no checkpoint was saved"
        super().__init__(f"{what.format(value=value)} step {step} (epoch {epoch}); {saved}")
        self.step, self.epoch, self.value, self.checkpoint = step, epoch, value, checkpoint


class CheckpointError(EngineError):
    pass


class NothingToResume(CheckpointError):
    pass


class CheckpointDamaged(CheckpointError):
    pass


class CheckpointOfAnotherModel(CheckpointError):
    pass


class CheckpointsInTheWay(CheckpointError):
    pass


class CheckpointNotWritten(CheckpointError):
    pass

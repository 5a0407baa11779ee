"""What a training reports: after each epoch, in between, and at its end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class StepRecord:
    """A look at the losses in the middle of an epoch; step counts from 1 over the whole run."""

    epoch: int
    step: int
    loss: float
    losses: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EpochRecord:
    """`seconds` is the training alone, until the device is done. `prepare_seconds`, in which the step was tried,
    compiled and captured, and `evaluation_seconds` are counted apart; the epoch took all three together.
    """

    epoch: int  # from 1
    loss: float  # mean over the rows
    scores: dict[str, float]
    seconds: float
    evaluation_seconds: float
    prepare_seconds: float
    rows: int
    steps: int  # of the whole run so far
    learning_rate: float
    losses: dict[str, float] = field(default_factory=dict)  # parts of a loss that is a dict
    train_scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    epochs: tuple[EpochRecord, ...]
    mode: str  # how the step was run
    stopped_early: bool = False
    best_epoch: int | None = None

    @property
    def last(self) -> EpochRecord:
        return self.epochs[-1]


def seconds_apart(record: EpochRecord) -> str:
    """Return the time the epoch took besides its training, in words for a log."""
    return f"prepare_seconds {record.prepare_seconds:.4f}  eval_seconds {record.evaluation_seconds:.4f}"


def as_plain(record: StepRecord | EpochRecord) -> dict[str, Any]:
    return {"kind": "step" if isinstance(record, StepRecord) else "epoch", **asdict(record)}

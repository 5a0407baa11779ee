"""The user's own functions and objects, called between steps; the time they take is measured and reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from hotlap.engine.errors import BadRecipe
from hotlap.engine.records import EpochRecord, StepRecord

WORTH_SAYING = 0.02  # of the training's time
AT_LEAST = 0.05  # seconds


class Training(Protocol):
    """The training under way, for a callback to look at and to change."""

    model: nn.Module
    optimizer: Optimizer
    is_first: bool  # of several processes
    stops: bool  # after this epoch, if a callback sets it

    @property
    def step(self) -> int:
        """Return the number of steps trained."""

    @property
    def epoch(self) -> int:
        """Return the number of the epoch under way, from 1; after it has ended, that of the next."""

    def save(self, name: str) -> None:
        """Write a checkpoint of this name into the folder of the recipe."""

    def scale_learning_rates(self, factor: float) -> None:
        """Multiply all learning rates from the next step on, whatever the schedule makes of them."""


class Callback:
    """Override what is needed. Weights may be changed in place; several processes call it alike, each with its own.

    A function of a record is a callback too: it is called in the first process alone, and one that returns "stop" ends
    the training after the epoch.
    """

    def begin(self, training: Training) -> None:
        """Before the first step, also of a resumed run."""

    def step(self, training: Training, record: StepRecord) -> None:
        """Every `log_every` steps."""

    def epoch(self, training: Training, record: EpochRecord) -> None:
        """After an epoch was evaluated and saved."""

    def end(self, training: Training) -> None:
        """After the last step, unless an error ended the training."""


AnyCallback = Callback | Callable[[StepRecord | EpochRecord], object]


class Callbacks:
    """Of several processes only the first calls functions; what its callbacks say about stopping counts for all."""

    def __init__(self, callbacks: Sequence[AnyCallback], is_first: bool = True) -> None:
        self.callbacks, self.is_first = [require_callback(callback) for callback in callbacks], is_first
        self.seconds = [0.0 for _ in self.callbacks]
        self.stopped_by: str | None = None

    def begin(self, training: Training) -> None:
        for callback in self._measured():
            if isinstance(callback, Callback):
                callback.begin(training)

    def end(self, training: Training) -> None:
        for callback in self._measured():
            if isinstance(callback, Callback):
                callback.end(training)

    def call(self, record: StepRecord | EpochRecord, training: Training) -> None:
        for callback in self._measured():
            training.stops = False
            if not isinstance(callback, Callback):
                returned = callback(record) if self.is_first else None
                training.stops = isinstance(returned, str) and returned == "stop"  # an array compares its elements
            elif isinstance(record, StepRecord):
                callback.step(training, record)
            else:
                callback.epoch(training, record)
            if training.stops:
                self.stopped_by = self.stopped_by or name_of(callback)

    def _measured(self) -> Iterator[AnyCallback]:
        for number, callback in enumerate(self.callbacks):
            with self._timed(number):
                yield callback

    @contextmanager
    def _timed(self, number: int) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[number] += time.perf_counter() - started

    @property
    def names(self) -> list[str]:
        return [name_of(callback) for callback in self.callbacks]

    def slow(self, training: float) -> list[str]:
        """Return a line for each callback that took a notable share of the training time."""
        return [
            f"callback {name} held the training up: {seconds:.2f} s, {seconds / training:.0%} of its time"
            for name, seconds in zip(self.names, self.seconds, strict=True)
            if seconds > AT_LEAST and seconds > WORTH_SAYING * training
        ]


def require_callback(callback: Any) -> AnyCallback:
    if isinstance(callback, type) or not (isinstance(callback, Callback) or callable(callback)):
        what = f"the class {callback.__name__}" if isinstance(callback, type) else f"a {type(callback).__name__}"
        raise BadRecipe(f"a callback is {what}; give a function of a record, or an object of a subclass of Callback")
    found: AnyCallback = callback
    return found


def name_of(callback: AnyCallback) -> str:
    return str(getattr(callback, "__name__", type(callback).__name__))

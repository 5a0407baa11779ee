"""The user's own functions, called between steps; the time they take is measured and reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hotlap.engine.records import EpochRecord, StepRecord

Callback = Callable[[StepRecord | EpochRecord], object]
WORTH_SAYING = 0.02  # of the training's time
AT_LEAST = 0.05  # seconds


class Callbacks:
    """A callback that returns "stop" ends the training after the epoch; any other value is ignored. Of several
    processes only the first calls them.
    """

    def __init__(self, callbacks: Sequence[Callback], are_called: bool = True) -> None:
        self.callbacks, self.are_called = list(callbacks), are_called
        self.seconds = [0.0 for _ in self.callbacks]
        self.stopped_by: str | None = None

    def call(self, record: StepRecord | EpochRecord) -> None:
        for number, callback in enumerate(self.callbacks if self.are_called else ()):
            started = time.perf_counter()
            returned = callback(record)
            self.seconds[number] += time.perf_counter() - started
            if isinstance(returned, str) and returned == "stop":  # an array would be compared element by element
                self.stopped_by = self.stopped_by or name_of(callback)

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


def name_of(callback: Callback) -> str:
    return str(getattr(callback, "__name__", type(callback).__name__))

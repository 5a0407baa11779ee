"""The user's own functions, called between steps; what they cost is measured and said."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hotlap.engine.records import EpochRecord, StepRecord

Callback = Callable[[StepRecord | EpochRecord], object]
WORTH_SAYING = 0.02  # of the training's time
AT_LEAST = 0.05  # seconds


class Callbacks:
    """A callback that returns "stop" ends the training after the epoch."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = list(callbacks)
        self.seconds = [0.0 for _ in self.callbacks]
        self.stop = False

    def call(self, record: StepRecord | EpochRecord) -> None:
        for number, callback in enumerate(self.callbacks):
            started = time.perf_counter()
            answer = callback(record)
            self.seconds[number] += time.perf_counter() - started
            self.stop = self.stop or answer == "stop"

    def slow(self, training: float) -> list[str]:
        """A line for each that took a share of the time worth knowing."""
        return [
            f"callback {name_of(callback)} held the training up: {seconds:.2f} s, {seconds / training:.0%} of its time"
            for callback, seconds in zip(self.callbacks, self.seconds, strict=True)
            if seconds > AT_LEAST and seconds > WORTH_SAYING * training
        ]


def name_of(callback: Callback) -> str:
    return str(getattr(callback, "__name__", type(callback).__name__))

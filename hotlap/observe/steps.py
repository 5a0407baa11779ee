"""The step as a user counts it.

A step ends with the last optimizer step before the next batch is asked for, or before the same optimizer steps again.
So a GAN's two optimizers are one step, the micro-batches of an accumulation are one step, and a loop without a
DataLoader works too. Whether an optimizer step was the last one shows only later; the figures are taken when it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hotlap.observe.clock import Clock


@dataclass(slots=True)
class Boundary:
    """The state of everything at the end of a step."""

    at: int  # perf_counter_ns
    totals: list[int]  # by phase, as in Clock.totals
    backwards: int
    event: Any  # a CUDA event, or None


class StepClock:
    def __init__(self, clock: Clock, on_step: Callable[[Boundary], None]) -> None:
        self._clock, self._on_step = clock, on_step
        self._stepped: set[int] = set()
        self._pending: Boundary | None = None
        self.optimizer_steps = 0

    def optimizer_begins(self, optimizer: Any) -> None:
        if id(optimizer) in self._stepped:
            self.close()

    def optimizer_ended(self, optimizer: Any, backwards: int, event: Any) -> None:
        self.optimizer_steps += 1
        self._stepped.add(id(optimizer))
        self._pending = Boundary(self._clock.lap(), list(self._clock.totals), backwards, event)

    def has_stepped(self, optimizer: Any) -> bool:
        return id(optimizer) in self._stepped

    def close(self) -> None:
        """The pending step, if any, is over."""
        boundary, self._pending = self._pending, None
        if boundary is not None:
            self._stepped.clear()
            self._on_step(boundary)

"""The step as a user counts it.

A step ends with the last optimizer step before the next batch is asked for, or before the same optimizer steps again.
So a GAN's two optimizers are one step, the micro-batches of an accumulation are one step, and a loop without a
DataLoader works too. Whether an optimizer step was the last one shows only later; the figures are taken when it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotlap.observe.clock import Clock


@dataclass(slots=True)
class Boundary:
    """The state of everything at the end of a step."""

    at: int  # nanoseconds on the tape's clock
    totals: list[int]  # by phase, as in Clock.totals
    backwards: int
    event: Any  # a CUDA event, or None
    fed: list[int]  # as in Clock
    unseen: list[int]
    optimizer_steps: int
    seen: int  # of them, those looked into


class StepClock:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stepped: set[int] = set()
        self._pending: Boundary | None = None
        self.optimizer_steps = 0
        self._seen = 0
        self.closed = 0

    def optimizer_ended(self, at: int, optimizer: int, backwards: int, event: Any) -> None:
        self.optimizer_steps += 1
        self._stepped.add(optimizer)
        self._clock.lap(at)
        clock = self._clock
        self._seen += clock.detailed
        self._pending = Boundary(
            at=at,
            totals=list(clock.totals),
            backwards=backwards,
            event=event,
            fed=list(clock.fed),
            unseen=list(clock.unseen),
            optimizer_steps=self.optimizer_steps,
            seen=self._seen,
        )

    def mark(self, event: Any) -> None:
        """A CUDA event recorded right after the optimizer's last step."""
        if self._pending is not None:
            self._pending.event = event

    def has_stepped(self, optimizer: int) -> bool:
        """Since the last step was closed."""
        return optimizer in self._stepped

    def close(self) -> Boundary | None:
        """The pending step, if any, is over."""
        boundary, self._pending = self._pending, None
        if boundary is not None:
            self.closed += 1
            self._stepped.clear()
        return boundary

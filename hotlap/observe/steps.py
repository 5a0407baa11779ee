"""Counts steps the way a user does.

A step ends with the last optimizer step before the next batch is requested, or before the same optimizer steps again.
So a GAN's two optimizers make one step, the micro-batches of an accumulation make one step, and a loop without a
DataLoader works too. Whether an optimizer step was the last shows only later; the figures are those of its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotlap.observe.clock import Clock


@dataclass(slots=True)
class Boundary:
    """The running totals at the end of a step."""

    at: int  # nanoseconds on the tape's clock
    totals: list[int]  # by phase, as in Clock.totals
    backwards: int
    event: Any  # a CUDA event, or None
    fed: list[int]  # as in Clock
    unseen: list[int]
    optimizer_steps: int
    seen: int  # how many of them were recorded in detail


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
        """Attach a CUDA event recorded right after the optimizer's last step."""
        if self._pending is not None:
            self._pending.event = event

    def has_stepped(self, optimizer: int) -> bool:
        """Whether this optimizer has stepped since the last step was closed."""
        return optimizer in self._stepped

    def close(self) -> Boundary | None:
        """Close and return the pending step, if any."""
        boundary, self._pending = self._pending, None
        if boundary is not None:
            self.closed += 1
            self._stepped.clear()
        return boundary

"""What a trial asks of whoever runs its processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hotlap.records.plan import Choice
from hotlap.records.trial import Sample
from hotlap.records.tune_record import Screening

BASE, NEW = "base", "new"


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """One process to run."""

    number: int  # in the order they run, over the whole tune
    arm: str  # BASE or NEW
    choices: tuple[Choice, ...]
    seed_shift: int
    steps: int  # to train, warm-up included; the program may end before
    least: int  # fewer than these are too short to measure
    seconds: float  # for the whole process
    nudge: float = 0.0  # as in Sample
    screens: float | None = None  # seconds after the first step in which it is decided what of the choices stays on
    readings: int = 0  # end as soon as the steps are done and the metric was read so often


class Runner(Protocol):
    hardware: str | None  # as the processes see it, once one has run
    torch: str | None  # its version, likewise

    def screen(self, spec: Spec) -> Screening | None:
        """A process that decides while it trains; None where there is no such thing."""
        ...

    def run(self, spec: Spec) -> Sample:
        """The process from start to end. What goes wrong in it is told by `Sample.ended`, never raised."""
        ...

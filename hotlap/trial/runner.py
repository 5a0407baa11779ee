"""The interface that a trial needs to run its processes."""

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
    steps: int  # to train, warm-up included; the program may end earlier
    least: int  # fewer than these are too short to measure
    seconds: float  # for the whole process
    nudge: float = 0.0  # as in Sample
    screens: float | None = None  # seconds after the first step to decide which choices stay on
    readings: int = 0  # end once the steps are done and the metric was read this often


class Runner(Protocol):
    hardware: str | None  # as the processes see it, once one has run
    torch: str | None  # its version, likewise

    def screen(self, spec: Spec) -> Screening | None:
        """Run a process that decides while it trains; None if this runner cannot."""
        ...

    def run(self, spec: Spec) -> Sample:
        """Run a process from start to end. What goes wrong in it is reported in `Sample.ended`, never raised."""
        ...

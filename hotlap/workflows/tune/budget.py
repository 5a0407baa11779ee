"""Tracks what a tune can still afford: the seconds spent, and the cost of a process with and without kept choices."""

from __future__ import annotations

from collections.abc import Sequence

from hotlap.records.trial import Sample, TrialStage
from hotlap.workflows.tune.book import Book


class Budget:
    def __init__(self, book: Book, process_seconds: float) -> None:
        self._book = book
        self.cost = process_seconds  # seconds of a baseline process
        self._kept_cost: float | None = None  # seconds of a process with everything kept; None: nothing is kept
        self._longer = 0.0  # extra seconds that a process trains if something is tried on top of it
        self.last_stage = 0.0  # seconds reserved for it

    @property
    def seconds(self) -> float:
        return self._book.record.asked.budget_seconds

    def learn(self, baseline: Sequence[Sample]) -> None:
        self.cost = sum(sample.seconds for sample in baseline) / len(baseline)

    def keep(self, kept: Sequence[Sample], longer: float) -> None:
        """Learn the cost of what is kept now: the faster it is, the more can be tried on top of it."""
        if kept:
            self._kept_cost, self._longer = sum(sample.seconds for sample in kept) / len(kept), longer

    def affords(self, processes: int) -> bool:
        """Whether there is time for this many processes of the baseline."""
        return self._book.spent + processes * self.cost + self.last_stage <= self.seconds

    def affords_pair(self, stage: str, reserve: int, pairs: int = 1) -> bool:
        """Whether there is time for pairs of that stage, and then `reserve` processes to prove what is kept."""
        kept = self.cost if self._kept_cost is None else self._kept_cost
        own = 2 * pairs * (kept + self._longer if stage == TrialStage.STACKED else self.cost)
        last = 0.0 if stage == TrialStage.LASTING else self.last_stage
        return self._book.spent + own + reserve * (self.cost + kept) / 2 + last <= self.seconds

    @property
    def left(self) -> float:
        return self.seconds - self._book.spent

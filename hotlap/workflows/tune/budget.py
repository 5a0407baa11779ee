"""What a tune can still afford: seconds spent, against what processes of the baseline and of what is kept take."""

from __future__ import annotations

from collections.abc import Sequence

from hotlap.records.trial import Sample, Stage
from hotlap.workflows.tune.book import Book


class Budget:
    def __init__(self, book: Book, process_seconds: float) -> None:
        self._book = book
        self.cost = process_seconds  # of a process of the baseline
        self._kept_cost: float | None = None  # of a process with all that is kept; None: nothing is
        self._longer = 0.0  # seconds that it trains longer where something is tried on top of it
        self.last_stage = 0.0  # seconds that are kept for it

    @property
    def seconds(self) -> float:
        return self._book.record.asked.budget_seconds

    def learn(self, baseline: Sequence[Sample]) -> None:
        self.cost = sum(one.seconds for one in baseline) / len(baseline)

    def keep(self, kept: Sequence[Sample], longer: float) -> None:
        """Processes of what is kept now: the faster it is, the more can be tried on top of it."""
        if kept:
            self._kept_cost, self._longer = sum(one.seconds for one in kept) / len(kept), longer

    def affords(self, processes: int) -> bool:
        """So many of the baseline."""
        return self._book.spent + processes * self.cost + self.last_stage <= self.seconds

    def affords_pair(self, stage: str, reserve: int, pairs: int = 1) -> bool:
        """Pairs of that stage, and after them so many processes to compare what is kept with the baseline."""
        kept = self.cost if self._kept_cost is None else self._kept_cost
        own = 2 * pairs * (kept + self._longer if stage == Stage.STACKED.value else self.cost)
        last = 0.0 if stage == Stage.LASTING.value else self.last_stage
        return self._book.spent + own + reserve * (self.cost + kept) / 2 + last <= self.seconds

    @property
    def left(self) -> float:
        return self.seconds - self._book.spent

"""Defines how hot a place in the code is."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from hotlap.records.scan_finding import Confidence, Frequency, Step


class Side(IntEnum):
    """The part of a program that code belongs to. Loading holds its tensors on the host, where reading never waits."""

    TRAIN = 0
    EVALUATE = 1
    LOAD = 2


class Heat(NamedTuple):
    frequency: Frequency
    confidence: Confidence
    side: Side
    why: tuple[Step, ...] = ()
    maybes: int = 0  # conditions on the way whose frequency is unknown
    rarely: bool = False  # once an epoch at most, and not in every epoch
    alone: bool = False  # in an evaluation made once per program, or in a loop around one without training
    around: bool = False  # in a loop over folds, seeds or trials: once per training, with the frequency of an epoch
    whole: bool = False  # in a training whose epoch is a single step, and not behind a switch

    def as_step(self) -> Heat:
        """Raise the confidence to medium for costs that matter even if a step is a whole epoch: it is one of many."""
        return self._replace(confidence=Confidence.MEDIUM) if self.whole else self

    @property
    def hot(self) -> bool:
        return self.frequency.rank >= Frequency.BATCH.rank

    @property
    def often(self) -> Frequency:
        """How often it runs, as a person is told."""
        return Frequency.TRAINING if self.around and self.frequency is Frequency.EPOCH else self.frequency

    def better_than(self, other: Heat | None) -> bool:
        if other is None:
            return True
        return self._order() > other._order()

    def _order(self) -> tuple[int, ...]:
        here = (self.hot, self.side is not Side.LOAD, self.confidence.rank, self.frequency.rank)
        return (*here, self.hot or not self.rarely, not self.alone, -self.maybes)


COLD = Heat(Frequency.ONCE, Confidence.HIGH, Side.TRAIN)

"""Trials of the entries that change how batches are made, which start before all others.

Loaders without workers can change from batch to batch; what starts with an epoch is measured when that begins.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator
from itertools import repeat

from hotlap.control.arms import Arm, Arms
from hotlap.control.findings import LoaderEntries, of_batches, tried_of
from hotlap.control.orders import Course, Orders
from hotlap.control.ratio import FEWEST, Faster, faster
from hotlap.control.timing import Clock
from hotlap.control.trials import CALM, PARTS, Trials

PATIENCE = 1.0  # seconds for the warm-up and the first block: slow steps must do with fewer
ROUNDS = 2  # of blocks with and without, at most, before batches are made the program's way again
QUICKER = 0.9  # of the time a step took when it was decided: batches may be made another way by now
HELD_UP = 0.5  # of a step, spent caching batches that are ready at once from the next epoch on …
HELD_UP_STEPS, MOST_HELD_UP = 8, 60.0  # … measured over so many steps, and waited for at most so many seconds


class LoaderTrials:
    def __init__(self, arms: Arms, loading: LoaderEntries, orders: Orders, trials: Trials, clock: Clock) -> None:
        self._arms, self._loading, self._orders, self._trials, self._clock = arms, loading, orders, trials, clock
        self._findings = trials.findings

    def load(self) -> Course:
        """Time the loader entries that start at once: without, with, with, without. Switch them off if slower."""
        without = yield from self._trials.block(until=self._findings.began + PATIENCE)
        self._findings.after = self._trials.usual = statistics.median(without)
        yield from self._orders.let_wait(False)
        yield from repeat(None, CALM)
        names, began = self._loading.applied(), self._findings.steps
        if not names:
            return
        with_: list[float] = []
        is_quick = len(without) == PARTS  # else more parts than it takes to tell would cost more than they are worth
        for _ in range(ROUNDS):  # what is switched off never comes back, so one slow spell must not decide
            with_ += yield from self._trials.block(PARTS * 2)
            if more := PARTS if is_quick else max(0, FEWEST - len(without)):
                without += yield from self._own_batches(more)
            found = faster(with_, without)
            kept = found.ratio >= 1.0 if self._loading.has_waited() else found.high >= 1.0
            if kept or not is_quick:
                break
        yield from self._batches_decided(names, began, without, with_, found, kept, of_batches(found))

    def held_up(self) -> Course:
        """Wait while steps mostly cache batches, since nothing else can be measured until that is done."""
        before, waited, until = self._findings.after, False, self._clock() + MOST_HELD_UP
        while self._clock() < until:
            seconds, since = self._loading.seconds_keeping(), self._trials.ended
            yield from repeat(None, HELD_UP_STEPS)
            if self._loading.seconds_keeping() - seconds < HELD_UP * (self._trials.ended - since):
                break
            waited = True
        if waited and before is not None and self._loading.applied():
            now = statistics.median((yield from self._trials.block()))
            if now < QUICKER * before:
                yield from self.load_later(before, now)

    def load_later(self, before: float, now: float) -> Course:
        """Measure loader entries that started with an epoch, once all batches were cached. Workers do not come back."""
        names, began = self._loading.applied(), self._findings.steps
        without = yield from self._own_batches()
        if not self._loading.has_waited():
            found = Faster(ratio=before / now, low=0.0, high=math.inf)
            why = f"{found.ratio:.2f} times as fast as before all batches were cached"
            yield from self._batches_decided(names, began, [before], [now], found, True, why)
            self._findings.by_batches = found.ratio
            return
        with_ = yield from self._trials.block(PARTS * 2)
        without += yield from self._own_batches()
        found = faster(with_, without)
        kept = found.ratio >= 1.0
        yield from self._batches_decided(names, began, without, with_, found, kept, of_batches(found))

    def _own_batches(self, parts: int = PARTS) -> Generator[None, None, list[float]]:
        """Time a block with batches made as the program makes them."""
        self._loading.wait()
        yield from self._orders.let_wait(True)
        yield from repeat(None, CALM)
        without = yield from self._trials.block(parts)
        yield from self._orders.let_wait(False)
        yield from repeat(None, CALM)
        return without

    def _batches_decided(
        self, names: Arm, began: int, without: list[float], with_: list[float], found: Faster, kept: bool, why: str
    ) -> Course:
        self._trials.record(tried_of(names, self._arms.now, began, without, with_, found, kept, 0.0, why))
        self._findings.after = self._trials.usual = statistics.median(with_ if kept else without)
        if kept:
            self._findings.by_batches = max(1.0, found.ratio) if found.low > 1.0 else 1.0
        else:
            yield from self._orders.switch_batches_off()
            yield from repeat(None, CALM)

"""Switches at the same step on all ranks: the first gives orders beforehand, and the others carry them out.

A process that trains by itself carries out its own orders at once.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from itertools import repeat

from hotlap.control.arms import Arm, Arms
from hotlap.control.findings import Findings, LoaderEntries
from hotlap.control.ranks import OneRank, Order, Ranks, State

Course = Generator[None, None, None]  # goes on at each step


class RanksApart(Exception):
    def __init__(self) -> None:
        super().__init__("the ranks are out of step with each other")


class Orders:
    def __init__(self, arms: Arms, loading: LoaderEntries, findings: Findings) -> None:
        self._arms, self._loading, self._findings = arms, loading, findings
        self.ranks: Ranks = OneRank()
        self.waits = True  # entries that can start later hold back, so that the unchanged program is timed
        self._batches_off = False

    def join(self) -> Course:
        """Wait until the ranks that train together have found each other, before anything is switched."""
        while not self.ranks.join(self._findings.steps):
            yield

    def follow(self) -> Course:
        """Carry out the first rank's orders, on every other rank."""
        carried_out, is_apart = 0, False
        while True:
            step, order = self._findings.steps, self.ranks.received()
            if order is not None and order.number > carried_out and step >= order.at:
                carried_out, is_apart = order.number, is_apart or step > order.at
                self._do(order)
                if order.is_over:
                    return
            self.ranks.report(State(step, self._arms.applied(), carried_out, self._arms.pending(), is_apart))
            yield

    def _do(self, order: Order) -> None:
        if order.arm != self._arms.now:
            self._arms.switch(order.arm)
        self._findings.on = self._arms.now
        self.waits = order.waits
        if order.batches_off and not self._batches_off:
            self._batches_off = True
            self._loading.off()

    def switch(self, arm: Arm) -> Course:
        """Switch to the arm at the same step as the other ranks, which get the order beforehand."""
        yield from self._ordered(arm)
        self._arms.switch(arm)

    def settle_on(self, arm: Arm) -> Course:
        yield from self._ordered(arm)
        self._arms.settle_on(arm)

    def let_wait(self, waits: bool) -> Course:
        at = self.order(self._arms.now, waits=waits)
        yield from repeat(None, at - self._findings.steps)
        self.waits = waits

    def switch_batches_off(self) -> Course:
        self._batches_off = True
        yield from self._ordered(self._arms.now)
        self._loading.off()

    def _ordered(self, arm: Arm) -> Course:
        if any(state.is_apart for state in self.ranks.others()):
            raise RanksApart
        yield from repeat(None, self.order(arm) - self._findings.steps)

    def order(self, arm: Arm, waits: bool | None = None, is_over: bool = False) -> int:
        wanted = self.waits if waits is None else waits
        order = Order(arm=arm, waits=wanted, batches_off=self._batches_off, is_over=is_over)
        return self.ranks.order(self._findings.steps, order)

    def report_failure(self) -> None:
        with suppress(OSError):
            if self.ranks.follows:
                self.ranks.report(State(self._findings.steps, is_apart=True))
            else:
                self.order(frozenset(), is_over=True)

    def applied(self) -> Arm:
        """Return the entries that are applied on all ranks."""
        return self._arms.applied().intersection(*(state.applied for state in self.ranks.others()))

    def pending(self) -> bool:
        """Return whether an entry has not reported its outcome yet, on any rank."""
        return self._arms.pending() or any(state.is_pending for state in self.ranks.others())

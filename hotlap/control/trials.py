"""A trial: times blocks of steps without and with some entries in turn, and keeps on what has gained.

A trial whose budget is spent ends early. What it tried is then switched off, unless an earlier one has proven it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Generator
from typing import Any

from hotlap.control.account import Account
from hotlap.control.arms import Arm, Arms
from hotlap.control.findings import Findings, LoaderEntries, Turns, times_as_fast, tried_of
from hotlap.control.orders import Course, Orders
from hotlap.control.ratio import Faster, faster
from hotlap.control.ticks import Ticks
from hotlap.control.timing import Clock, Marks
from hotlap.records.decisions import BlockTrial

PARTS = 4  # of the first block, each timed separately
PART_SECONDS = 0.04  # at least this long, or one step if that is longer
TURNS = (False, True, True, False, True, False, False, True)  # without and with, so that neither always comes second
PARTS_OF_A_TURN = 2  # a slow spell may last a whole block, so blocks are compared, not their parts
AGAIN = 3  # rounds of turns, at most, while the result is unclear or a wide interval shows a busy machine
SETTLES, SETTLES_AGAIN = 12, 4  # steps within which an entry reports its outcome, the first time and later
CALM = 2  # steps after a switch, which are not measured
MOST_LATE = 10  # times a usual step: a single step that is later still is due to the program itself
MOST_LEFT_OUT = 4  # unusual steps for each usual one
GAIN = 1.01  # times as fast, at least: less is not worth a change
TOO_DEAR = "the trial used up the time that the training so far allows"
SAME = "none of it applies here"


class TrialEnded(Exception):
    """Raised to end the trial under way without a result; it says why."""


class Trials:
    def __init__(
        self,
        arms: Arms,
        loading: LoaderEntries,
        orders: Orders,
        ticks: Ticks,
        marks: Marks,
        clock: Clock,
        account: Account,
        findings: Findings,
    ) -> None:
        self._arms, self._loading, self._orders = arms, loading, orders
        self._ticks, self._marks, self._clock = ticks, marks, clock
        self._account, self.findings = account, findings
        self.on_tried: Callable[[BlockTrial], None] = lambda tried: None
        self.usual: float | None = None  # seconds per step, without what is being tried
        self.passed = 0.0  # seconds that the last step took, on the host's clock …
        self.ended = 0.0  # … and when it ended
        self.settling = False  # entries were switched on just now

    def compare(self, base: Arm, arm: Arm, is_proven: bool = False) -> Generator[None, None, tuple[bool, Arm]]:
        """Return whether `arm` gains over `base`, and which added entries have an effect. A gain stays on.

        What an earlier trial of this run has proven also stays on if the budget ends this one.
        """
        home, began, before = self._arms.now, self.findings.steps, self.findings.by_steps
        found: Faster | None = None
        without: list[float] = []
        with_: list[float] = []
        why = ""
        self._account.open()
        try:
            for _ in range(AGAIN):
                turn = yield from self._turns(base, arm, home)
                arm = turn.arm
                if arm == base:
                    why = SAME
                    break
                without, with_ = without + turn.without, with_ + turn.with_
                found = faster(with_, without)
                if found.is_clear or (found.ratio < GAIN and not found.is_wide):
                    break
        except TrialEnded as end:
            why, found, self.settling = str(end), None, False
            self.findings.ever_on |= self._orders.applied()
        cost = self._account.close()
        gains = found is not None and found.low > 1.0 and found.ratio >= GAIN
        if found is None and why != SAME:
            gains = is_proven  # this time it has shown nothing
        elif found is not None and arm == home:
            gains = found.ratio >= GAIN  # it was found to gain before, so the interval need not show it again
        stays = arm if gains else base
        if self._arms.now != stays:
            yield from self._orders.switch(stays)
            yield from self.settle()
        self._arms.let_go()
        self.findings.on = self._arms.now
        if found is not None:
            self.findings.after = self.usual = statistics.median(with_ if gains else without)
            self.findings.by_steps = times_as_fast(before, found, arm == home, gains, not base)
        elif not stays:
            self._is_plain_again(before)
        names = arm - base
        below = base | self._loading.applied()
        self.record(tried_of(names, below, began, without, with_, found, gains, cost, why))
        return gains, names

    def _is_plain_again(self, before: float) -> None:
        """Reset the gain: all is off, and the time of a step without it was not measured this time."""
        self.findings.by_steps = 1.0
        if self.findings.after is not None:
            self.findings.after = self.usual = self.findings.after * before

    def record(self, tried: BlockTrial) -> None:
        self.findings.tried.append(tried)
        self.on_tried(tried)

    def _turns(self, base: Arm, arm: Arm, home: Arm) -> Generator[None, None, Turns]:
        """Time blocks without and with the arm in turn; a new arm shrinks to the entries that have an effect."""
        is_new, held = arm != home, base & self._orders.applied()
        without: list[float] = []
        with_: list[float] = []
        for is_with in TURNS:
            wanted = arm if is_with else base
            if self._arms.now != wanted:
                yield from self._orders.switch(wanted)
                yield from self.settle(SETTLES if is_with and is_new else SETTLES_AGAIN)
                yield from self._come_back(held)
            if is_with and is_new:
                yield from self._orders.settle_on(base | (arm & self._orders.applied()))
                arm, is_new = self._arms.now, False
            if arm == base:
                break
            self.findings.ever_on |= self._arms.now
            seconds = statistics.fmean((yield from self.block(PARTS_OF_A_TURN)))
            (with_ if is_with else without).append(seconds)
            if wanted == home:
                self.usual = seconds  # the machine, or the program, may be slower by now
        return Turns(arm, without, with_)

    def _come_back(self, held: Arm) -> Course:
        """Wait until the entries that were on before are on again: one that was made for the other arm starts anew."""
        for _ in range(SETTLES):
            if held <= self._orders.applied():
                return
            yield
            self._require_credit()
        raise TrialEnded(f"{', '.join(sorted(held - self._orders.applied()))} did not come back on")

    def settle(self, most: int = SETTLES_AGAIN) -> Course:
        """Wait until every entry switched on has reported its outcome, and a little longer."""
        self.settling = True
        for _ in range(most):
            yield
            self._require_credit()
            if not self._orders.pending():
                break
        for _ in range(CALM):
            yield
            self._require_credit()
        self.settling = False

    def _require_credit(self) -> None:
        if self._account.is_overdrawn(self._clock()):
            raise TrialEnded(TOO_DEAR)

    def block(self, parts: int = PARTS, until: float = math.inf) -> Generator[None, None, list[float]]:
        """Return the seconds per step of each part of a block."""
        found: list[list[tuple[Any, Any]]] = []
        while len(found) < parts and (not found or self._clock() <= until):
            found.append((yield from self._part()))
        while not found[-1][-1][1].has_come():
            yield
        return [sum(first.until(last) for first, last in part) / len(part) for part in found]

    def _part(self) -> Generator[None, None, list[tuple[Any, Any]]]:
        """Return the steps of one part, as pairs of marks.

        Steps in which a loader starts a new iteration, or the program evaluates or saves, are left out unless nearly
        all are like that.
        """
        taken: list[tuple[Any, Any]] = []
        left_out: list[tuple[Any, Any]] = []
        before, seconds = self._marks.mark(), 0.0
        while not taken or seconds < PART_SECONDS:
            self._ticks.iterated = False
            yield
            self._require_credit()
            now = self._marks.mark()
            if self._ticks.iterated or (self.usual is not None and self.passed > MOST_LATE * self.usual):
                left_out.append((before, now))
            else:
                taken.append((before, now))
                seconds += self.passed
            before = now
            if len(left_out) >= MOST_LEFT_OUT * (len(taken) + 1):
                return left_out
        return taken

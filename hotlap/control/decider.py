"""Decides during training which optimisations stay on.

The program starts unchanged. The candidate that usually gains most is then switched on and off, in alternating short
blocks of steps, then all others that start at once together, and on top of those the candidates that take long to
start, as the budget allows. If a group is faster, each candidate is left out in turn and dropped if it gains nothing;
if not, each half of it is tried. What
remains is compared with the unchanged program once more. Steps are watched afterwards: if they become slower than they
were without, the comparison runs again. Every block is real training: nothing is repeated or discarded. When several
ranks train together, the first decides and the others switch at the same step.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import Any

from hotlap.control.account import Account
from hotlap.control.arms import Arm, Arms
from hotlap.control.findings import Candidate, Findings, LoaderEntries, joined
from hotlap.control.loader_trials import PATIENCE, QUICKER, LoaderTrials
from hotlap.control.orders import Course, Orders
from hotlap.control.ranks import OneRank, Ranks
from hotlap.control.ticks import Ticks
from hotlap.control.timing import Clock, Marks
from hotlap.control.trials import MOST_LATE, SETTLES, TOO_DEAR, Trials
from hotlap.patch.signals import comes_from_outside

WARM = 6  # ticks before the first block: the first ones allocate buffers and tune libraries …
GAPS = 9  # the latest steps between two epochs: as long as the longest of them is nothing unusual
ALIKE = 0.5  # of a pause: another at least this long is of the same kind
LEADS = 0.8  # of the possible gain, usually: such a candidate is tried first
CREDIT = 0.3  # seconds that must be left in the account before a trial
LOST = 0.97  # of the earlier speed: below that, the gain is measured again
WINDOW_STEPS, WINDOW_SECONDS = 50, 5.0  # of watching, at least
LIGHTER = 0.7  # of the time a step took when it was decided: gains too small to see then may count now
LOOKS = 3  # in all, including the first decision

Tried = tuple[bool, list[Candidate]]  # whether they gain together, and those of them that have an effect


class Decider:
    def __init__(
        self,
        ticks: Callable[[Callable[[Any], None]], Ticks],
        arms: Arms,
        loading: LoaderEntries,
        marks: Marks,
        candidates: Iterable[Candidate],
        clock: Clock = time.perf_counter,
        ranks: Callable[[], Ranks] = OneRank,
        saved: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._arms, self._loading, self._marks, self._clock = arms, loading, marks, clock
        self._find_ranks = ranks
        self._candidates = list(candidates)
        self._waiting: list[Candidate] = []  # for the budget, and not tried yet
        self._ticks = ticks(self._tick)
        self.account = Account(saved)
        self.findings = Findings()
        self.orders = Orders(arms, loading, self.findings)
        self.trials = Trials(arms, loading, self.orders, self._ticks, marks, clock, self.account, self.findings)
        self._batches = LoaderTrials(arms, loading, self.orders, self.trials, clock)
        self.on_decided: Callable[[], None] = lambda: None
        self.on_failed: Callable[[Exception], None] = lambda error: None
        self._course: Course | None = self._whole_course()
        self._pause = 0.0  # the longest one due to the program itself
        self._disputed = 0.0  # seconds of a pause at a switch, which was charged to us
        self._paid_back = False  # since then, what was too expensive may be affordable
        self._gaps: deque[float] = deque(maxlen=GAPS)  # steps in which a loader started a new iteration, in seconds
        self._was_late = False  # whether the last step was

    @property
    def steps(self) -> int:
        """The number of steps of any optimizer."""
        return self._ticks.steps

    def begin(self) -> None:
        self._ticks.begin()

    def begin_with(self, arm: Arm, untried: Arm = frozenset()) -> None:
        """Start with what an earlier run decided, on from the first steps and then measured again, and try later what
        that run could not afford.
        """
        self._waiting = [candidate for candidate in self._candidates if candidate.names & untried]
        self._course = self._known_course(arm)

    @property
    def is_waiting(self) -> bool:
        """Whether something has not been tried so far, because the budget does not cover it."""
        return bool(self._waiting)

    @property
    def untried(self) -> Arm:
        """The entries that the budget has not allowed to be measured so far."""
        cut_off = [candidate for candidate in self._left_out() if self._cut_off_at(candidate) < math.inf]
        return joined([*self._waiting, *cut_off])

    def end(self) -> None:
        """Switch everything off."""
        self._course = None
        self._ticks.end()
        self._arms.close()
        self.orders.ranks.close()

    # Steps

    def _tick(self, optimizer: Any) -> None:
        now = self._clock()
        if self.findings.steps == 0:
            self.findings.began = self.trials.ended = now
            self.account.begin(now)
            self.orders.ranks = self._find_ranks()
        self.findings.steps += 1
        self.trials.passed, self.trials.ended = now - self.trials.ended, now
        iterated, self._ticks.iterated_now = self._ticks.iterated_now, False
        if self.trials.usual is not None:
            self._settle_up(self.trials.passed, self.trials.usual, iterated)
        if self.findings.steps <= WARM and optimizer is not None:
            self._marks.look_at(optimizer)
        if self._course is not None:
            try:
                next(self._course)
            except StopIteration:
                self._rest()
                self.orders.order(self._arms.now, is_over=True)
            except BaseException as error:
                self._rest()
                if not isinstance(error, Exception) or comes_from_outside(error):
                    with suppress(Exception):  # an interrupted trial has proven nothing
                        self._arms.switch(self.findings.on)
                    raise
                self._arms.close()
                self.findings.on = frozenset()
                self.orders.report_failure()
                self.on_failed(error)

    def _settle_up(self, passed: float, usual: float, iterated: bool) -> None:
        """Charge or credit a step against the time of the unchanged program.

        Our own preparation falls at a switch. The program's evaluations are not charged, but a pause at a switch may be
        either: it is refunded once one as long comes at another time, so was the program's.
        """
        ratio, most = self.findings.ratio, MOST_LATE * usual
        if iterated and (self._arms.now == self.findings.on or not self._gaps):
            self._gaps.append(passed)
        late = max(0.0, passed - max(self._gaps)) if iterated else passed - usual * ratio
        whole = (self.trials.settling or self._was_late) and not iterated and ALIKE * late > self._pause
        self._was_late = late > most
        self.account.charge(late if whole else min(late, most))
        if late > most and whole:
            self._disputed = max(self._disputed, late)
        elif late > most and not self.trials.settling:
            self._pause = max(self._pause, late)
            if self._pause > ALIKE * self._disputed > 0.0:
                self.account.pay_back(self._disputed)
                self._disputed, self._paid_back = 0.0, True
        self.account.gain(min(passed, usual) * (ratio - 1.0))

    def _rest(self) -> None:
        self._course = None
        self._ticks.end()

    # The course of a run

    def _whole_course(self) -> Course:
        yield from self._warm()
        yield from self.orders.join()
        if self.orders.ranks.follows:
            yield from self.orders.follow()
            return
        yield from self._batches.load()
        yield from self._batches.held_up()
        yield from self._decide(self._candidates)
        yield from self._confirm()
        yield from self._decided()

    def _known_course(self, arm: Arm) -> Course:
        yield from self.orders.join()
        if self.orders.ranks.follows:
            yield from self.orders.follow()
            return
        yield from self.orders.switch(arm)
        yield from self._warm()
        yield from self.trials.settle(SETTLES)
        yield from self.orders.settle_on(arm & self.orders.applied())
        self.findings.on = self.findings.ever_on = self._arms.now
        yield from self._batches.load()
        yield from self._batches.held_up()
        if self._arms.now:
            yield from self.trials.compare(frozenset(), self._arms.now)
        yield from self._decided()

    def _decided(self) -> Course:
        self._announce()
        yield from self._watch()

    def _announce(self) -> None:
        if not self.findings.is_over and (self._arms.now or self._loading.applied() or not self.untried):
            self.findings.is_over = True
            self.on_decided()

    def _warm(self) -> Course:
        """Wait for the warm-up. The first step is not timed, because its start is unknown."""
        for step in range(WARM):
            yield
            if step and self._clock() - self.findings.began > PATIENCE / 2:
                return

    def _decide(self, candidates: list[Candidate]) -> Course:
        """Find the candidates that gain on top of what is on, and leave those on. The one that usually gains most comes
        first, by itself, and others that take long to start come last; what cannot be afforded yet waits.
        """
        self._waiting = [candidate for candidate in self._waiting if candidate not in candidates]
        candidates = [candidate for candidate in candidates if candidate.is_possible()]
        leading = [candidate for candidate in candidates if candidate.prepares and candidate.reach >= LEADS]
        quick = [candidate for candidate in candidates if not candidate.prepares]
        slow = [candidate for candidate in candidates if candidate.prepares and candidate not in leading]
        tried = yield from self._try_now(leading)
        if quick:
            yield from self._affordable(0.0)
            tried.append((yield from self._try_together(quick)))
        tried += yield from self._try_now(slow)
        for gains, parts in tried:
            if gains:
                yield from self._prune(parts)
        for gains, parts in tried:
            if not gains:
                yield from self._halve(parts)

    def _try_now(self, candidates: list[Candidate]) -> Generator[None, None, list[Tried]]:
        """Try together those that the budget allows now."""
        affordable = self._affordable_now(candidates)
        return [(yield from self._try_together(affordable))] if affordable else []

    def _catch_up(self) -> Course:
        """Try what has waited for the budget, before smaller gains are looked for."""
        waiting, self._waiting = self._waiting, []
        for gains, parts in (yield from self._try_now(waiting)):
            yield from self._prune(parts) if gains else self._halve(parts)

    def _affordable_now(self, candidates: list[Candidate]) -> list[Candidate]:
        """Return those that the budget allows together, likeliest to gain first; the others wait for more of it, or
        until they are prepared.
        """
        left, affordable = self.account.left(self._clock()), []
        for candidate in candidates:
            if candidate.is_ready() and max(CREDIT, candidate.prepares) <= left:
                left -= candidate.prepares
                affordable.append(candidate)
            else:
                self._waiting.append(candidate)
        return affordable

    def _try_together(self, candidates: list[Candidate]) -> Generator[None, None, Tried]:
        """Return whether they gain together, and those of them that have an effect."""
        base = self._arms.now
        gains, applied = yield from self.trials.compare(base, base | joined(candidates))
        return gains, [candidate for candidate in candidates if candidate.names & applied]

    def _halve(self, candidates: list[Candidate]) -> Course:
        """Try each half of a group that has not gained, and the halves of those."""
        middle = len(candidates) // 2
        for half in (candidates[:middle], candidates[middle:]) if middle else ():
            yield from self._catch_up()
            yield from self._affordable(sum(candidate.prepares for candidate in half))
            gains, parts = yield from self._try_together(half)
            yield from self._prune(parts) if gains else self._halve(parts)

    def _prune(self, candidates: list[Candidate]) -> Course:
        """Leave out each candidate of a group in turn; it stays if the rest is slower without it."""
        for candidate in candidates if len(candidates) > 1 else ():
            yield from self._catch_up()
            whole = self._arms.now
            without = whole - candidate.names
            if without not in (whole, frozenset()):
                yield from self._affordable(candidate.prepares)
                yield from self.trials.compare(without, whole, is_proven=True)

    def _confirm(self) -> Course:
        """Compare what is left with the unchanged program: that was only done for several candidates together."""
        base = self.findings.tried[-1].on_top_of if self.findings.tried else ()
        if self._arms.now and frozenset(base) & joined(self._candidates):
            yield from self._affordable(0.0)
            yield from self.trials.compare(frozenset(), self._arms.now, is_proven=True)

    def _affordable(self, seconds: float) -> Course:
        while self.account.left(self._clock()) < max(CREDIT, seconds):
            yield

    # Afterwards

    def _watch(self) -> Course:
        """Watch steps until the end, because what was decided may stop being true."""
        looks, slow, decided = 1, 0, self.findings.after
        while looks < LOOKS and (self._arms.now or self._candidates or self._loading.is_coming()):
            seconds = yield from self._window()
            if self._paid_back and (left := self._left_out()):
                looks, self._paid_back = looks + 1, False
                yield from self._decide(left)
                decided = self.findings.after
                continue
            if postponed := self._postponed():
                looks += 1
                yield from self._decide(postponed)
                self._announce()
                decided = self.findings.after
                continue
            if seconds is None or decided is None:
                continue
            slow = slow + 1 if seconds * LOST > decided * self.findings.by_steps else 0
            if slow >= 2 and self._arms.now:
                looks, slow = looks + 1, 0
                yield from self.trials.compare(frozenset(), self._arms.now)
                decided = self.findings.after
            elif seconds < QUICKER * decided and self._loading.applied():
                looks += 1
                yield from self._batches.load_later(decided, seconds)
                if seconds < LIGHTER * decided:
                    yield from self._decide(self._left_out())
                decided = self.findings.after
            elif seconds < LIGHTER * decided and (left := self._left_out()):
                looks, decided = looks + 1, seconds
                yield from self._decide(left)

    def _left_out(self) -> list[Candidate]:
        return [candidate for candidate in self._candidates if not candidate.names & self._arms.now]

    def _postponed(self) -> list[Candidate]:
        """Return the candidates that have waited for the budget, now that it covers them; twice the cost of their last
        trial, if it ended that.
        """
        left = self.account.left(self._clock())
        waited = [
            candidate for candidate in self._waiting if candidate.is_ready() and left >= max(CREDIT, candidate.prepares)
        ]
        return waited + [candidate for candidate in self._left_out() if left >= self._cut_off_at(candidate)]

    def _cut_off_at(self, candidate: Candidate) -> float:
        last = next((tried for tried in reversed(self.findings.tried) if candidate.names & set(tried.names)), None)
        return max(CREDIT, 2 * last.cost) if last is not None and last.why == TOO_DEAR else math.inf

    def _window(self) -> Generator[None, None, float | None]:
        """Return the seconds per step over a window, or None if a loader kept starting new iterations. It is shorter
        once batches are cached and steps take much less time than before.
        """
        total, steps, began = 0.0, 0, self._clock()
        seen, light = 0, QUICKER * (self.findings.after or 0.0) if self._loading.applied() else 0.0
        while steps < WINDOW_STEPS or (total >= light * steps and self._clock() - began < WINDOW_SECONDS):
            self._ticks.iterated = False
            yield
            seen += 1
            if not self._ticks.iterated:
                total, steps = total + self.trials.passed, steps + 1
            elif seen > 4 * WINDOW_STEPS and steps < seen // 4:
                return None
        return total / steps

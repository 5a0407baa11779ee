"""Decides during training which optimisations stay on.

The program starts unchanged. All candidates are then switched on and off together, in alternating short blocks of
steps. If that is faster, each candidate is left out in turn and dropped if it gains nothing; if not, each half of
them is tried. What remains is compared with the unchanged program once more. Steps are watched afterwards: if they
become slower than they were without, the comparison runs again. Every block is real training: nothing is repeated or
discarded. When several ranks train together, the first decides and the others switch at the same step.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Any

from hotlap.control.account import Account
from hotlap.control.arms import Arm, Arms
from hotlap.control.findings import (
    Candidate,
    Findings,
    LoaderEntries,
    Turns,
    joined,
    of_batches,
    times_as_fast,
    tried_of,
)
from hotlap.control.ranks import OneRank, Order, Ranks, State
from hotlap.control.ratio import Faster, faster
from hotlap.control.ticks import Ticks
from hotlap.control.timing import Clock, Marks
from hotlap.patch.signals import comes_from_outside
from hotlap.records.decisions import BlockTrial

WARM = 6  # ticks before the first block: the first ones allocate buffers and tune libraries …
PATIENCE = 1.0  # … and seconds for these and that block: slow steps must do with fewer
PARTS = 4  # of the first block, each timed separately
PART_SECONDS = 0.04  # at least this long, or one step if that is longer
TURNS = (False, True, True, False, True, False, False, True)  # without and with, so that neither always comes second
PARTS_OF_A_TURN = 2  # a slow spell may last a whole block, so blocks are compared, not their parts
AGAIN = 3  # rounds of turns, at most, while the result is unclear or a wide interval shows a busy machine
SETTLES, SETTLES_AGAIN = 12, 4  # steps within which an entry reports its outcome, the first time and later
CALM = 2  # steps after a switch, which are not measured
MOST_LATE = 10  # times a usual step: a single step that is later still is due to the program itself
GAPS = 9  # the latest steps between two epochs: as long as the longest of them is nothing unusual
ALIKE = 0.5  # of a pause: another at least this long is of the same kind
MOST_LEFT_OUT = 4  # unusual steps for each usual one
CREDIT = 0.3  # seconds that must be left in the account before a trial
GAIN = 1.01  # times as fast, at least: less is not worth a change
LOST = 0.97  # of the earlier speed: below that, the gain is measured again
WINDOW_STEPS, WINDOW_SECONDS = 50, 5.0  # of watching, at least
LIGHTER = 0.7  # of the time a step took when it was decided: gains too small to see then may count now
QUICKER = 0.9  # of that time: batches may be made another way by now
LOOKS = 3  # in all, including the first decision
HELD_UP = 0.5  # of a step, spent caching batches that are ready at once from the next epoch on …
HELD_UP_STEPS, MOST_HELD_UP = 8, 60.0  # … measured over so many steps, and waited for at most so many seconds
TOO_DEAR = "the trial used up the time that the training so far allows"
SAME = "none of it applies here"

Course = Generator[None, None, None]


class AccountEmpty(Exception):
    """Raised to end the trial under way, because its time budget is spent."""


class RanksApart(Exception):
    def __init__(self) -> None:
        super().__init__("the ranks are out of step with each other")


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
    ) -> None:
        self._arms, self._loading, self._marks, self._clock = arms, loading, marks, clock
        self._find_ranks = ranks
        self.ranks: Ranks = OneRank()
        self._candidates = list(candidates)
        self._ticks = ticks(self._tick)
        self.account = Account()
        self.findings = Findings()
        self.waits = True  # entries that can start later hold back, so that the unchanged program is timed
        self.on_decided: Callable[[], None] = lambda: None
        self.on_tried: Callable[[BlockTrial], None] = lambda tried: None
        self.on_failed: Callable[[Exception], None] = lambda error: None
        self._course: Course | None = self._whole_course()
        self._last = self._passed = 0.0  # when the last step ended, on the host's clock, and how long it took
        self._usual: float | None = None  # seconds per step, without what is being tried
        self._pause = 0.0  # the longest one due to the program itself
        self._disputed = 0.0  # seconds of a pause at a switch, which was charged to us
        self._paid_back = False  # since then, what was too expensive may be affordable
        self._gaps: deque[float] = deque(maxlen=GAPS)  # steps in which a loader started a new iteration, in seconds
        self._settling = False  # entries were switched on just now
        self._was_late = False  # whether the last step was
        self._batches_off = False

    @property
    def steps(self) -> int:
        """The number of steps of any optimizer."""
        return self._ticks.steps

    def begin(self) -> None:
        self._ticks.begin()

    def begin_with(self, arm: Arm) -> None:
        """Start with what an earlier run decided, on from the first steps and then measured again."""
        self._course = self._known_course(arm)

    def end(self) -> None:
        """Switch everything off."""
        self._course = None
        self._ticks.end()
        self._arms.close()
        self.ranks.close()

    # Steps

    def _tick(self, optimizer: Any) -> None:
        now = self._clock()
        if self.findings.steps == 0:
            self.findings.began = self._last = now
            self.account.begin(now)
            self.ranks = self._find_ranks()
        self.findings.steps += 1
        self._passed, self._last = now - self._last, now
        iterated, self._ticks.iterated_now = self._ticks.iterated_now, False
        if self._usual is not None:
            self._settle_up(self._passed, self._usual, iterated)
        if self.findings.steps <= WARM and optimizer is not None:
            self._marks.look_at(optimizer)
        if self._course is not None:
            try:
                next(self._course)
            except StopIteration:
                self._rest()
                self._order(self._arms.now, is_over=True)
            except BaseException as error:
                self._rest()
                if not isinstance(error, Exception) or comes_from_outside(error):
                    with suppress(Exception):  # an interrupted trial has proven nothing
                        self._arms.switch(self.findings.on)
                    raise
                self._arms.close()
                self.findings.on = frozenset()
                self._report_failure()
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
        whole = (self._settling or self._was_late) and not iterated and ALIKE * late > self._pause
        self._was_late = late > most
        self.account.charge(late if whole else min(late, most))
        if late > most and whole:
            self._disputed = max(self._disputed, late)
        elif late > most and not self._settling:
            self._pause = max(self._pause, late)
            if self._pause > ALIKE * self._disputed > 0.0:
                self.account.pay_back(self._disputed)
                self._disputed, self._paid_back = 0.0, True
        self.account.gain(min(passed, usual) * (ratio - 1.0))

    def _report_failure(self) -> None:
        with suppress(OSError):
            if self.ranks.follows:
                self.ranks.report(State(self.findings.steps, is_apart=True))
            else:
                self._order(frozenset(), is_over=True)

    def _rest(self) -> None:
        self._course = None
        self._ticks.end()

    def _steps(self, count: int) -> Iterator[None]:
        for _ in range(count):
            yield

    # The course of a run

    def _whole_course(self) -> Course:
        yield from self._warm()
        yield from self._join()
        if self.ranks.follows:
            yield from self._follow()
            return
        yield from self._load()
        yield from self._held_up()
        yield from self._decide(self._candidates)
        yield from self._confirm()
        yield from self._decided()

    def _known_course(self, arm: Arm) -> Course:
        yield from self._join()
        if self.ranks.follows:
            yield from self._follow()
            return
        yield from self._switch(arm)
        yield from self._warm()
        yield from self._settle(SETTLES)
        yield from self._settle_on(arm & self._applied())
        self.findings.on = self.findings.ever_on = self._arms.now
        yield from self._load()
        yield from self._held_up()
        if self._arms.now:
            yield from self._trial(frozenset(), self._arms.now)
        yield from self._decided()

    def _decided(self) -> Course:
        self.findings.is_over = True
        self.on_decided()
        yield from self._watch()

    def _warm(self) -> Course:
        """Wait for the warm-up. The first step is not timed, because its start is unknown."""
        for step in range(WARM):
            yield
            if step and self._clock() - self.findings.began > PATIENCE / 2:
                return

    def _load(self) -> Course:
        """Time the loader entries that start at once: without, with, with, without. Switch them off if slower."""
        without = yield from self._block(until=self.findings.began + PATIENCE)
        self.findings.after = self._usual = statistics.median(without)
        yield from self._let_wait(False)
        yield from self._steps(CALM)
        names, began = self._loading.applied(), self.findings.steps
        if not names:
            return
        with_ = yield from self._block(PARTS * 2)
        if len(without) == PARTS:  # else steps are slow, and another block would cost more than it is worth
            without += yield from self._own_batches()
        found = faster(with_, without)
        kept = found.ratio >= 1.0 if self._loading.has_waited() else found.high >= 1.0
        yield from self._batches_decided(names, began, without, with_, found, kept, of_batches(found))

    def _held_up(self) -> Course:
        """Wait while steps mostly cache batches, since nothing else can be measured until that is done."""
        before, waited, until = self.findings.after, False, self._clock() + MOST_HELD_UP
        while self._clock() < until:
            seconds, since = self._loading.seconds_keeping(), self._last
            yield from self._steps(HELD_UP_STEPS)
            if self._loading.seconds_keeping() - seconds < HELD_UP * (self._last - since):
                break
            waited = True
        if waited and before is not None and self._loading.applied():
            now = statistics.median((yield from self._block()))
            if now < QUICKER * before:
                yield from self._load_later(before, now)

    def _load_later(self, before: float, now: float) -> Course:
        """Measure loader entries that started with an epoch, once all batches were cached. Workers do not come back."""
        names, began = self._loading.applied(), self.findings.steps
        without = yield from self._own_batches()
        if not self._loading.has_waited():
            found = Faster(ratio=before / now, low=0.0, high=math.inf)
            why = f"{found.ratio:.2f} times as fast as before all batches were cached"
            yield from self._batches_decided(names, began, [before], [now], found, True, why)
            self.findings.by_batches = found.ratio
            return
        with_ = yield from self._block(PARTS * 2)
        without += yield from self._own_batches()
        found = faster(with_, without)
        kept = found.ratio >= 1.0
        yield from self._batches_decided(names, began, without, with_, found, kept, of_batches(found))

    def _own_batches(self) -> Generator[None, None, list[float]]:
        """Time a block with batches made as the program makes them."""
        self._loading.wait()
        yield from self._let_wait(True)
        yield from self._steps(CALM)
        without = yield from self._block()
        yield from self._let_wait(False)
        yield from self._steps(CALM)
        return without

    def _batches_decided(
        self, names: Arm, began: int, without: list[float], with_: list[float], found: Faster, kept: bool, why: str
    ) -> Course:
        self._record(tried_of(names, self._arms.now, began, without, with_, found, kept, 0.0, why))
        self.findings.after = self._usual = statistics.median(with_ if kept else without)
        if kept:
            self.findings.by_batches = max(1.0, found.ratio) if found.low > 1.0 else 1.0
        else:
            self._batches_off = True
            yield from self._ordered(self._arms.now)
            self._loading.off()
            yield from self._steps(CALM)

    def _decide(self, candidates: list[Candidate]) -> Course:
        """Find the candidates that gain on top of what is on, and leave those on."""
        if not candidates:
            return
        yield from self._affordable(sum(candidate.prepares for candidate in candidates))
        base = self._arms.now
        gains, applied = yield from self._trial(base, base | joined(candidates))
        parts = [candidate for candidate in candidates if candidate.names & applied]
        if gains:
            yield from self._prune(parts)
        elif len(parts) > 1:
            middle = len(parts) // 2
            yield from self._decide(parts[:middle])
            yield from self._decide(parts[middle:])

    def _prune(self, candidates: list[Candidate]) -> Course:
        """Leave out each candidate in turn; it stays if the rest is slower without it."""
        for candidate in candidates if len(candidates) > 1 else ():
            whole = self._arms.now
            without = whole - candidate.names
            if without not in (whole, frozenset()):
                yield from self._affordable(candidate.prepares)
                yield from self._trial(without, whole, is_proven=True)

    def _confirm(self) -> Course:
        """Compare what is left with the unchanged program: that was only done for several candidates together."""
        base = self.findings.tried[-1].on_top_of if self.findings.tried else ()
        if self._arms.now and frozenset(base) & frozenset().union(*(candidate.names for candidate in self._candidates)):
            yield from self._affordable(0.0)
            yield from self._trial(frozenset(), self._arms.now, is_proven=True)

    def _affordable(self, seconds: float) -> Course:
        while self.account.left(self._clock()) < max(CREDIT, seconds):
            yield

    # Several ranks

    def _join(self) -> Course:
        """Wait until the ranks that train together have found each other, before anything is switched."""
        while not self.ranks.join(self.findings.steps):
            yield

    def _follow(self) -> Course:
        """Carry out the first rank's orders, on every other rank."""
        carried_out, is_apart = 0, False
        while True:
            step, order = self.findings.steps, self.ranks.received()
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
        self.findings.on = self._arms.now
        self.waits = order.waits
        if order.batches_off and not self._batches_off:
            self._batches_off = True
            self._loading.off()

    def _switch(self, arm: Arm) -> Course:
        """Switch to the arm at the same step as the other ranks, which get the order beforehand."""
        yield from self._ordered(arm)
        self._arms.switch(arm)

    def _settle_on(self, arm: Arm) -> Course:
        yield from self._ordered(arm)
        self._arms.settle_on(arm)

    def _let_wait(self, waits: bool) -> Course:
        at = self._order(self._arms.now, waits=waits)
        yield from self._steps(at - self.findings.steps)
        self.waits = waits

    def _ordered(self, arm: Arm) -> Course:
        if any(state.is_apart for state in self.ranks.others()):
            raise RanksApart
        yield from self._steps(self._order(arm) - self.findings.steps)

    def _order(self, arm: Arm, waits: bool | None = None, is_over: bool = False) -> int:
        wanted = self.waits if waits is None else waits
        order = Order(arm=arm, waits=wanted, batches_off=self._batches_off, is_over=is_over)
        return self.ranks.order(self.findings.steps, order)

    def _applied(self) -> Arm:
        """Return the entries that are applied on all ranks."""
        return self._arms.applied().intersection(*(state.applied for state in self.ranks.others()))

    # One trial

    def _trial(self, base: Arm, arm: Arm, is_proven: bool = False) -> Generator[None, None, tuple[bool, Arm]]:
        """Return whether `arm` gains over `base`, and which added entries have an effect. A gain stays on.

        What an earlier trial of this run has proven also stays on if the budget ends this one.
        """
        home, began, before = self._arms.now, self.findings.steps, self.findings.by_steps
        found: Faster | None = None
        without: list[float] = []
        with_: list[float] = []
        why = ""
        self.account.open()
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
        except AccountEmpty:
            why, found, self._settling = TOO_DEAR, None, False
            self.findings.ever_on |= self._applied()
        cost = self.account.close()
        gains = found is not None and found.low > 1.0 and found.ratio >= GAIN
        if found is None and why == TOO_DEAR:
            gains = is_proven
        elif found is not None and arm == home:
            gains = found.ratio >= GAIN  # it was found to gain before, so the interval need not show it again
        stays = arm if gains else base
        if self._arms.now != stays:
            yield from self._switch(stays)
            yield from self._settle()
        self._arms.let_go()
        self.findings.on = self._arms.now
        if found is not None:
            self.findings.after = self._usual = statistics.median(with_ if gains else without)
            self.findings.by_steps = times_as_fast(before, found, arm == home, gains, not base)
        elif not stays:
            self._is_plain_again(before)
        names = arm - base
        below = base | self._loading.applied()
        self._record(tried_of(names, below, began, without, with_, found, gains, cost, why))
        return gains, names

    def _is_plain_again(self, before: float) -> None:
        """Reset the gain: all is off, and the time of a step without it was not measured this time."""
        self.findings.by_steps = 1.0
        if self.findings.after is not None:
            self.findings.after = self._usual = self.findings.after * before

    def _record(self, tried: BlockTrial) -> None:
        self.findings.tried.append(tried)
        self.on_tried(tried)

    def _turns(self, base: Arm, arm: Arm, home: Arm) -> Generator[None, None, Turns]:
        """Time blocks without and with the arm in turn; a new arm shrinks to the entries that have an effect."""
        is_new = arm != home
        without: list[float] = []
        with_: list[float] = []
        for is_with in TURNS:
            wanted = arm if is_with else base
            if self._arms.now != wanted:
                yield from self._switch(wanted)
                yield from self._settle(SETTLES if is_with and is_new else SETTLES_AGAIN)
            if is_with and is_new:
                yield from self._settle_on(base | (arm & self._applied()))
                arm, is_new = self._arms.now, False
            if arm == base:
                break
            self.findings.ever_on |= self._arms.now
            seconds = statistics.fmean((yield from self._block(PARTS_OF_A_TURN)))
            (with_ if is_with else without).append(seconds)
            if wanted == home:
                self._usual = seconds  # the machine, or the program, may be slower by now
        return Turns(arm, without, with_)

    def _settle(self, most: int = SETTLES_AGAIN) -> Course:
        """Wait until every entry switched on has reported its outcome, and a little longer."""
        self._settling = True
        for _ in range(most):
            yield
            self._require_credit()
            if not (self._arms.pending() or any(state.is_pending for state in self.ranks.others())):
                break
        for _ in range(CALM):
            yield
            self._require_credit()
        self._settling = False

    def _require_credit(self) -> None:
        if self.account.is_overdrawn(self._clock()):
            raise AccountEmpty

    def _block(self, parts: int = PARTS, until: float = math.inf) -> Generator[None, None, list[float]]:
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
            if self._ticks.iterated or (self._usual is not None and self._passed > MOST_LATE * self._usual):
                left_out.append((before, now))
            else:
                taken.append((before, now))
                seconds += self._passed
            before = now
            if len(left_out) >= MOST_LEFT_OUT * (len(taken) + 1):
                return left_out
        return taken

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
                decided = self.findings.after
                continue
            if seconds is None or decided is None:
                continue
            slow = slow + 1 if seconds * LOST > decided * self.findings.by_steps else 0
            if slow >= 2 and self._arms.now:
                looks, slow = looks + 1, 0
                yield from self._trial(frozenset(), self._arms.now)
                decided = self.findings.after
            elif seconds < QUICKER * decided and self._loading.applied():
                looks += 1
                yield from self._load_later(decided, seconds)
                if seconds < LIGHTER * decided:
                    yield from self._decide(self._left_out())
                decided = self.findings.after
            elif seconds < LIGHTER * decided and (left := self._left_out()):
                looks, decided = looks + 1, seconds
                yield from self._decide(left)

    def _left_out(self) -> list[Candidate]:
        return [candidate for candidate in self._candidates if not candidate.names & self._arms.now]

    def _postponed(self) -> list[Candidate]:
        """Return the candidates whose last trial the budget ended, now that it covers twice what that cost."""
        left = self.account.left(self._clock())
        return [candidate for candidate in self._left_out() if left >= self._cut_off_at(candidate)]

    def _cut_off_at(self, candidate: Candidate) -> float:
        last = next((tried for tried in reversed(self.findings.tried) if candidate.names & set(tried.names)), None)
        return max(CREDIT, 2 * last.cost) if last is not None and last.why == TOO_DEAR else math.inf

    def _window(self) -> Generator[None, None, float | None]:
        """Return the seconds per step over a window, or None if a loader kept starting new iterations."""
        total, steps, began = 0.0, 0, self._clock()
        seen = 0
        while steps < WINDOW_STEPS or self._clock() - began < WINDOW_SECONDS:
            self._ticks.iterated = False
            yield
            seen += 1
            if not self._ticks.iterated:
                total, steps = total + self._passed, steps + 1
            elif seen > 4 * WINDOW_STEPS and steps < seen // 4:
                return None
        return total / steps

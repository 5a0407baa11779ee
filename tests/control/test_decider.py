"""The decider runs on a simulated program: the test moves the clock, and the arm determines how long a step takes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from hotlap.control.arms import Arm, Arms
from hotlap.control.decider import Decider
from hotlap.control.findings import Candidate
from hotlap.control.ranks import OneRank, Ranks
from hotlap.control.timing import HostMark
from hotlap.records.plan import Outcome, Status

STEP = 0.02  # seconds per step of the unchanged program


class Played:
    """A simulated training whose steps take `seconds(arm)`; `begins` is the cost of switching an entry on."""

    def __init__(
        self,
        seconds: Callable[[Arm], float],
        names: tuple[str, ...] = ("one",),
        begins: float = 0.0,
        keeps: tuple[str, ...] = (),
        refused: tuple[str, ...] = (),
        loading: Callable[[], float] | Loaded | None = None,
        together: bool = False,
        ranks: Callable[[], Ranks] = OneRank,
    ) -> None:
        self.now, self._seconds, self._begins, self._refused = 0.0, seconds, begins, refused
        self._random = random.Random(0)
        self.noise = 0.02
        self.begun: list[str] = []
        self.iterated = self.iterated_now = False
        self.steps = 0
        self.loading = loading if isinstance(loading, Loaded) else Loaded(loading)
        self.arms = Arms(self._begin, names, lambda name: name in keeps)
        alternatives = [Candidate(frozenset(names))]
        candidates = alternatives if together else [Candidate(frozenset({name}), begins) for name in names]
        self.deciding = Decider(self._ticks, self.arms, self.loading, self, candidates, lambda: self.now, ranks)  # type: ignore[arg-type]
        self.lines: list[str] = []
        self.deciding.on_decided = lambda: self.lines.append("decided")
        self.deciding.on_failed = lambda error: self.lines.append(f"failed: {error}")
        self.deciding.begin()

    def _ticks(self, tick: Callable[[Any], None]) -> Any:
        self.tick = tick
        return self

    def begin(self) -> None:
        self.listening = True

    def end(self) -> None:
        self.listening = False

    def mark(self) -> HostMark:
        return HostMark(lambda: self.now)

    def look_at(self, optimizer: Any) -> None:
        pass

    def _begin(self, name: str, arm: Arm) -> Any:
        self.begun.append(name)
        self.now += self._begins
        return Switched(name, name in self._refused)

    def train(self, steps: int) -> Played:
        for _ in range(steps):
            self.step()
        return self

    def step(self) -> None:
        usual = self._seconds(self.arms.now)
        self.now += usual * self._random.lognormvariate(0, self.noise) + self.loading.takes(self.deciding.orders.waits)
        if self.listening:
            self.tick(None)

    @property
    def on(self) -> Arm:
        return self.deciding.findings.on


class Switched:
    def __init__(self, name: str, refused: bool) -> None:
        self.name, self.closed, self.paused, self.has_reported = name, False, False, True
        self._status = Status.REFUSED if refused else Status.APPLIED

    @property
    def outcome(self) -> Outcome:
        return Outcome(name=self.name, code="X1", status=self._status.value, why="")

    def close(self) -> None:
        self.closed = True


class Loaded:
    waited = True
    coming = False

    def __init__(self, takes: Callable[[], float] | None) -> None:
        self._takes, self.is_off = takes, False

    def wait(self) -> None:
        pass

    def is_coming(self) -> bool:
        return self.coming

    def seconds_keeping(self) -> float:
        return 0.0

    def takes(self, waits: bool) -> float:
        return 0.0 if self._takes is None or waits or self.is_off else self._takes()

    def applied(self) -> Arm:
        return frozenset() if self._takes is None or self.is_off else frozenset({"batches"})

    def has_waited(self) -> bool:
        return self.waited

    def off(self) -> None:
        self.is_off = True


def test_a_faster_candidate_stays_on() -> None:
    played = Played(lambda arm: STEP / 2 if arm else STEP).train(400)
    assert played.on == {"one"}
    assert played.lines == ["decided"]
    (trial,) = played.deciding.findings.tried
    assert trial.kept
    assert trial.ratio == pytest.approx(2, rel=0.1)
    assert trial.low is not None
    assert trial.low > 1.8


@pytest.mark.parametrize("factor", [1.0, 1.005, 1.1, 3.0])
def test_a_candidate_that_is_not_faster_is_switched_off(factor: float) -> None:
    played = Played(lambda arm: STEP * factor if arm else STEP).train(600)
    assert played.on == frozenset()
    assert played.arms.now == frozenset()
    assert not played.deciding.findings.tried[-1].kept


def test_a_program_without_candidates_is_left_alone() -> None:
    played = Played(lambda arm: STEP, names=()).train(200)
    assert played.lines == ["decided"]
    assert not played.listening


def test_members_without_a_gain_leave_a_group_that_gains() -> None:
    def seconds(arm: Arm) -> float:
        return STEP * (0.5 if "good" in arm else 1.0) * (1.1 if "bad" in arm else 1.0)

    assert Played(seconds, names=("good", "bad", "idle")).train(3000).on == {"good"}


def test_a_group_without_a_gain_is_halved() -> None:
    def seconds(arm: Arm) -> float:
        return STEP * (0.8 if "good" in arm else 1.0) * (2.0 if "bad" in arm else 1.0)

    assert Played(seconds, names=("good", "idle", "bad", "other")).train(4000).on == {"good"}


def test_a_refused_candidate_costs_no_blocks() -> None:
    played = Played(lambda arm: STEP, refused=("one",)).train(400)
    (trial,) = played.deciding.findings.tried
    assert trial.ratio is None
    assert trial.with_ == ()
    assert played.on == frozenset()


def test_candidates_wait_until_the_budget_allows_them() -> None:
    """Ten seconds of preparation are covered after 489 seconds of training."""
    played = Played(lambda arm: STEP / 2 if arm else STEP, begins=10.0, keeps=("one",))
    played.train(int(470 / STEP))
    assert not played.begun
    played.train(int(150 / STEP))
    assert played.on == {"one"}
    assert played.begun == ["one"]


@pytest.mark.parametrize("slower", [2.0, 50.0])
def test_accounts_for_the_cost_of_trials(slower: float) -> None:
    """However slow an entry is, trying it stays within the budget, except for the current step."""
    played = Played(lambda arm: STEP * slower if arm else STEP)
    for _ in range(40):
        played.train(25)
        allowed = 1.0 + 0.02 * played.now + slower * STEP
        assert played.now - played.deciding.findings.steps * STEP * 1.02 < allowed
    assert played.on == frozenset()


def test_a_candidate_that_becomes_slow_later_is_switched_off() -> None:
    played = Played(lambda arm: (STEP / 2 if played.now < 30 else STEP * 3) if arm else STEP)
    assert played.train(1000).on == {"one"}
    played.train(4000)
    assert played.on == frozenset()


def test_a_gain_too_small_to_matter_is_tried_again_once_steps_are_short() -> None:
    """Late batches hide the gain at first."""

    def seconds(arm: Arm) -> float:
        late = STEP if played.now < 60 else 0.0
        return max(late, 0.002 if arm else 0.004)

    played = Played(seconds)
    played.noise = 0.003
    assert played.train(600).on == frozenset()
    played.train(12000)
    assert played.on == {"one"}


def test_one_slow_spell_does_not_cost_the_program_its_cached_batches() -> None:
    calls = count()
    played = Played(lambda arm: STEP, loading=lambda: STEP if next(calls) < 12 else -STEP / 2).train(400)
    assert not played.loading.is_off
    trial = played.deciding.findings.tried[0]
    assert trial.names == ("batches",)
    assert trial.kept


def test_the_gain_of_cached_batches_is_told_even_if_steps_are_slow() -> None:
    played = Played(lambda arm: 0.3, loading=lambda: -0.28).train(400)
    assert played.deciding.findings.ratio == pytest.approx(15, rel=0.2)


def test_batches_that_get_slower_are_left_to_the_program() -> None:
    played = Played(lambda arm: STEP, loading=lambda: STEP).train(400)
    assert played.loading.is_off
    faster = Played(lambda arm: STEP, loading=lambda: -STEP / 2).train(400)
    assert not faster.loading.is_off
    assert faster.deciding.findings.tried[0].names == ("batches",)


def test_a_pause_within_a_block_does_not_affect_the_decision() -> None:
    """A checkpoint or an evaluation falls into one of the blocks."""
    for at in range(20, 90, 7):
        played = Played(lambda arm: STEP)
        played.noise = 0.003
        played.train(at)
        played.now += 2.0
        assert played.train(600).on == frozenset()


@pytest.mark.parametrize("every", [29, 50, 97])
def test_evaluations_within_blocks_do_not_hide_a_gain(every: int) -> None:
    """The loop evaluates by its own count of steps, without a loader that would reveal it."""
    played = Played(lambda arm: STEP / 1.3 if arm else STEP)
    for _ in range(4000 // every):
        played.train(every)
        played.now += 1.0
    assert played.on == {"one"}
    assert played.deciding.findings.ratio == pytest.approx(1.3, rel=0.1)


def test_evaluations_do_not_count_as_cost_of_trials() -> None:
    """Each evaluation takes longer than a trial may cost."""
    played = Played(lambda arm: STEP / 2 if arm else STEP)
    for _ in range(60):
        played.train(10)
        played.now += 5.0
        played.iterated = played.iterated_now = True
    assert played.on == {"one"}


@pytest.mark.parametrize("first", range(20, 80, 4))
def test_evaluations_without_a_loader_do_not_count_as_cost_of_trials(first: int) -> None:
    """This holds wherever they fall, even on steps after a switch, in which hotlap may prepare something."""
    played = Played(lambda arm: STEP / 2 if arm else STEP).train(first)
    for _ in range(60):
        played.now += 7.0
        played.train(50)
    assert played.on == {"one"}


def test_evaluations_between_short_epochs_do_not_count_as_cost_of_trials() -> None:
    """Each evaluation takes as long as six steps, so an epoch is mostly evaluation."""
    played = Played(lambda arm: STEP / 2 if arm else STEP)
    for _ in range(200):
        played.train(3)
        played.now += 6 * STEP
        played.iterated = played.iterated_now = True
    assert played.on == {"one"}
    assert played.deciding.account.spent < 0.1


def test_evaluations_of_uneven_length_do_not_count_as_cost_of_trials() -> None:
    played = Played(lambda arm: STEP / 2 if arm else STEP)
    for _ in range(300):
        played.train(5)
        played.now += STEP * played._random.uniform(4, 40)
        played.iterated = played.iterated_now = True
    assert played.on == {"one"}
    assert max(tried.cost for tried in played.deciding.findings.tried) < 1.0


def test_a_gain_stays_on_if_the_budget_ends_its_second_trial() -> None:
    """The machine becomes busy after the group was found to gain, so that every step is late."""
    busy = [1.0]
    played = Played(lambda arm: busy[0] * STEP * (0.5 if arm else 1.0), names=("one", "two"), together=False)
    while not played.deciding.findings.tried:
        played.step()
    assert played.deciding.findings.tried[0].kept
    busy[0] = 30.0
    played.train(60)
    last = played.deciding.findings.tried[-1]
    assert last.ratio is None
    assert last.kept
    assert played.on == {"one", "two"}


def test_a_trial_that_the_budget_ended_is_repeated_when_it_can_be_afforded() -> None:
    slow = [40.0]
    played = Played(lambda arm: STEP * (0.5 if slow[0] == 1.0 else slow[0]) if arm else STEP)
    while not played.deciding.findings.tried:
        played.step()
    assert not played.on
    slow[0] = 1.0
    assert played.train(15_000).on == {"one"}


def test_an_internal_error_leaves_the_program_unchanged() -> None:
    played = Played(lambda arm: STEP)
    played.arms._begin = lambda name, arm: 1 / 0  # type: ignore[assignment, return-value]
    played.train(100)
    assert played.lines == ["failed: division by zero"]
    assert played.on == frozenset()
    assert not played.listening


def test_an_interrupted_trial_leaves_nothing_on() -> None:
    """The program catches a Ctrl-C that arrives while a block is measured."""
    played = Played(lambda arm: STEP / 2 if arm else STEP)
    while not played.arms.now:
        played.train(1)

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    played.deciding.account.is_overdrawn = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        played.train(2)
    assert played.arms.now == frozenset()
    assert not played.listening
    played.train(100)


def test_noise_alone_rarely_switches_anything_on() -> None:
    count = 0
    for seed in range(60):
        played = Played(lambda arm: STEP)
        played._random, played.noise = random.Random(seed), 0.15
        count += bool(played.train(500).on)
    assert count <= 5


class KeptLater(Loaded):
    """Batches take half the time once all of them are kept; changed workers cannot be restored."""

    coming = True

    def __init__(self, waited: bool, gain: float = -STEP / 2) -> None:
        super().__init__(None)
        self.waited, self.served, self._gain = waited, False, gain

    def takes(self, waits: bool) -> float:
        return self._gain if self.served and not self.is_off and not (waits and self.waited) else 0.0

    def applied(self) -> Arm:
        return frozenset({"batches"}) if self.served and not self.is_off else frozenset()


class KeptWhileItWaits(KeptLater):
    """Nearly all of a step is spent waiting for batches, until all of them are kept."""

    def __init__(self, epoch: float) -> None:
        super().__init__(waited=False, gain=0.0)
        self.now, self._epoch = (lambda: 0.0), epoch

    def seconds_keeping(self) -> float:
        return min(self.now(), self._epoch)

    def applied(self) -> Arm:
        return frozenset({"batches"})

    def takes(self, waits: bool) -> float:
        return 0.0


def _held_up(epoch: float) -> Played:
    loading = KeptWhileItWaits(epoch)
    played = Played(lambda arm: STEP if played.now < epoch else 0.002 if arm else 0.004, loading=loading)
    loading.now = lambda: played.now
    played.noise = 0.003
    return played


def test_tries_nothing_while_steps_wait_for_batches_being_kept() -> None:
    played = _held_up(epoch=20.0)
    while played.now < 19.5:
        played.train(10)
    assert [trial.names for trial in played.deciding.findings.tried] == [("batches",)]
    assert played.train(2000).on == {"one"}
    assert played.deciding.findings.by_batches == pytest.approx(STEP / 0.004, rel=0.1)
    assert played.deciding.findings.ratio == pytest.approx(STEP / 0.002, rel=0.1)


def test_does_not_wait_for_an_epoch_that_takes_an_hour() -> None:
    played = _held_up(epoch=3600.0)
    while played.now < 120:
        played.train(10)
    assert ("one",) in [trial.names for trial in played.deciding.findings.tried]


def test_blocks_of_the_unchanged_program_cost_nothing() -> None:
    """Even when the entries make the program much faster, its own blocks take no longer than without hotlap."""
    factors = {"first": 0.05, "second": 0.5, "third": 0.8}
    played = Played(lambda arm: 0.2 * math.prod(factors[name] for name in arm), names=tuple(factors)).train(3000)
    assert played.on == set(factors)
    assert played.deciding.account.spent < 0.1
    assert played.deciding.findings.ratio == pytest.approx(50, rel=0.15)


def _with_a_dear_one(seconds: Callable[[Arm], float], prepares: float) -> Played:
    """A training with a candidate that starts at once and one that takes seconds to start."""
    played = Played(seconds, names=("quick", "dear"), keeps=("dear",))
    played.deciding._candidates = [Candidate(frozenset({"dear"}), prepares), Candidate(frozenset({"quick"}))]
    begin = played.arms._begin

    def begun(name: str, arm: Arm) -> Any:
        played.now += prepares if name == "dear" else 0.0
        return begin(name, arm)

    played.arms._begin = begun
    return played


def test_time_gained_pays_for_further_trials() -> None:
    """Preparation takes two seconds, which the first entry's gain earns long before a fiftieth of the time does."""
    played = _with_a_dear_one(
        lambda arm: STEP * (0.2 if "quick" in arm else 1.0) * (0.5 if "dear" in arm else 1.0), prepares=2.0
    ).train(2000)
    assert played.on == {"quick", "dear"}
    assert played.now < 30


def test_what_the_budget_does_not_cover_holds_nothing_else_back() -> None:
    played = _with_a_dear_one(lambda arm: STEP * (0.8 if "quick" in arm else 1.0), prepares=30.0).train(600)
    assert played.on == {"quick"}
    assert played.lines == ["decided"]
    assert "dear" not in played.begun
    assert played.deciding.untried == {"dear"}


def test_a_time_saved_at_the_start_pays_for_trials() -> None:
    played = _with_a_dear_one(lambda arm: STEP * (0.5 if "dear" in arm else 1.0), prepares=1.5)
    played.deciding.account._saved = lambda: 1.0
    assert played.train(400).on == {"dear"}


def test_what_an_earlier_run_could_not_afford_is_tried_later() -> None:
    played = _with_a_dear_one(
        lambda arm: STEP * (0.8 if "quick" in arm else 1.0) * (0.5 if "dear" in arm else 1.0), 1.5
    )
    played.deciding.begin_with(frozenset({"quick"}), untried=frozenset({"dear"}))
    played.train(300)
    assert "dear" not in played.begun
    assert played.train(1500).on == {"quick", "dear"}
    assert not played.deciding.untried


def test_a_gain_switched_off_unmeasured_is_not_claimed() -> None:
    """The entry first gains; then it gets so slow that another comparison would exceed the budget."""
    played = Played(lambda arm: (STEP / 4 if played.now < 20 else 60.0) if arm else STEP)
    assert played.train(1000).on == {"one"}
    while played.on:
        played.train(10)
    assert played.deciding.findings.ratio == 1.0
    assert played.deciding.findings.after == pytest.approx(STEP, rel=0.1)


@pytest.mark.parametrize("waited", [True, False])
def test_batches_kept_from_the_second_epoch_on_are_measured_then(waited: bool) -> None:
    loading = KeptLater(waited)
    played = Played(lambda arm: STEP, names=(), loading=loading).train(300)
    assert played.deciding.findings.ratio == 1.0
    loading.served = True
    played.train(1200)
    findings = played.deciding.findings
    assert findings.ratio == pytest.approx(2, rel=0.15)
    assert findings.tried[-1].names == ("batches",)
    assert findings.after == pytest.approx(STEP / 2, rel=0.15)


def test_batches_that_become_slower_when_kept_return_to_the_program() -> None:
    """The steps themselves get shorter meanwhile."""
    loading = KeptLater(waited=True, gain=0.3 * STEP)
    seconds = [STEP]
    played = Played(lambda arm: seconds[0], names=(), loading=loading).train(300)
    loading.served, seconds[0] = True, STEP / 3
    played.train(1200)
    assert loading.is_off
    assert played.deciding.findings.ratio == 1.0


class Unsteady(Played):
    """The machine is half as slow again for a while, every now and then."""

    slower, until = 1.0, 0.0

    def train(self, steps: int) -> Unsteady:
        for _ in range(steps):
            if self.now >= self.until:
                self.slower = 1.5 if self._random.random() < 0.35 else 1.0
                self.until = self.now + self._random.expovariate(1 / 0.6)
            self.now += self._seconds(self.arms.now) * self.slower * self._random.lognormvariate(0, 0.05)
            if self.listening:
                self.tick(None)
        return self


@pytest.mark.parametrize("seed", range(12))
def test_a_machine_that_changes_its_speed_causes_no_false_gain(seed: int) -> None:
    factors = {"good": 0.7, "idle": 1.0, "bad": 1.1}

    def seconds(arm: Arm) -> float:
        return 0.008 * math.prod(factors[name] for name in arm)

    played = Unsteady(seconds, names=tuple(factors))
    played._random.seed(seed)
    assert played.train(3000).on - {"idle"} == {"good"}
    assert played.deciding.findings.ratio == pytest.approx(1 / 0.7, rel=0.1)


def test_the_rest_of_a_group_is_compared_with_the_unchanged_program() -> None:
    def seconds(arm: Arm) -> float:
        return STEP * {frozenset(): 1.0, frozenset({"one", "two"}): 0.5}.get(arm, 1.3)  # neither gains alone

    played = Played(seconds, names=("one", "two")).train(3000)
    assert played.on == {"one", "two"}
    last = played.deciding.findings.tried[-1]
    assert (last.names, last.on_top_of) == (("one", "two"), ())
    assert played.deciding.findings.ratio == last.ratio


def test_what_an_earlier_run_cut_off_is_tried_once() -> None:
    played = _with_a_dear_one(lambda arm: STEP * (0.5 if "dear" in arm else 1.0), prepares=0.1)
    played.deciding.begin_with(frozenset({"dear"}), untried=frozenset({"quick"}))
    played.train(3000)
    assert played.on == {"dear"}
    assert [trial.names for trial in played.deciding.findings.tried].count(("quick",)) == 1
    assert not played.deciding.untried


def test_a_process_that_exists_for_trials_has_more_time_for_them() -> None:
    played = _with_a_dear_one(lambda arm: STEP * (0.5 if "dear" in arm else 1.0), prepares=12.0)
    played.deciding.account.grant(15.0)
    assert played.train(400).on == {"dear"}


def test_what_usually_gains_most_is_tried_first() -> None:
    names = ("small", "large")
    played = Played(lambda arm: STEP * (0.3 if "large" in arm else 1.0), names=names, keeps=("large",))
    played.deciding._candidates = [Candidate(frozenset({"small"})), Candidate(frozenset({"large"}), 0.5, reach=0.8)]
    played.train(600)
    assert played.deciding.findings.tried[0].names == ("large",)
    assert played.on == {"large"}


def test_what_waited_for_the_budget_comes_before_parts_of_a_group() -> None:
    names = ("a", "b", "c", "d", "large")
    played = Played(lambda arm: STEP * (0.3 if "large" in arm else 1.0), names=names, keeps=("large",))
    small = [Candidate(frozenset({name})) for name in names[:4]]
    left = played.deciding.account.left
    played.deciding._candidates = [*small, Candidate(frozenset({"large"}), 0.5, reach=0.8)]
    played.deciding.account.left = lambda now: left(now) if played.deciding.findings.tried else 0.4
    played.train(1500)
    assert [trial.names for trial in played.deciding.findings.tried[:2]] == [("a", "b", "c", "d"), ("large",)]
    assert played.on == {"large"}


def test_what_is_prepared_beside_the_training_is_tried_once_it_is_ready() -> None:
    played = Played(lambda arm: STEP * (0.5 if "dear" in arm else 1.0), names=("quick", "dear"), keeps=("dear",))
    dear = Candidate(frozenset({"dear"}), 0.4, is_ready=lambda: played.now > 20.0)
    played.deciding._candidates = [dear, Candidate(frozenset({"quick"}))]
    while played.now < 20.0:
        played.step()
    assert "dear" not in played.begun
    assert played.deciding.untried == {"dear"}
    played.train(2000)
    assert played.on == {"dear"}


def test_a_trial_in_which_something_does_not_come_back_on_says_nothing() -> None:
    """Without the first, the second would look four times as slow."""
    played = Played(lambda arm: STEP * (0.25 if arm == {"first"} else 1.0), names=("first", "second"), keeps=("first",))
    played.deciding._candidates = [Candidate(frozenset({"first"}), 0.1, reach=0.8), Candidate(frozenset({"second"}))]
    begin = played.arms._begin
    played.arms._begin = lambda name, arm: (
        Switched(name, refused=True) if len(arm) == 2 and name == "first" else begin(name, arm)
    )
    played.train(1500)
    whys = {trial.names: trial.why for trial in played.deciding.findings.tried}
    assert whys["second",] == "first did not come back on"
    assert played.on == {"first"}


def test_what_this_machine_has_no_device_for_is_not_tried() -> None:
    played = Played(lambda arm: STEP * (0.5 if "one" in arm else 1.0), names=("one", "of a GPU"))
    impossible = Candidate(frozenset({"of a GPU"}), 0.5, 0.9, is_possible=lambda: False)
    played.deciding._candidates = [impossible, Candidate(frozenset({"one"}))]
    played.train(500)
    assert played.deciding.findings.tried[0].names == ("one",)
    assert "of a GPU" not in played.begun
    assert played.on == {"one"}
    assert played.lines == ["decided"]

"""Which steps are sampled, and how the time of the others is attributed."""

from __future__ import annotations

from itertools import islice

import pytest

from hotlap.observe.clock import Clock, spread
from hotlap.observe.step_sampling import ALLOWED, FEWEST, SECONDS_OF_DETAIL, StepSampling, share_of_steps
from hotlap.records.observation import BACKWARD, COPY, DATA, EVALUATION, FORWARD, GARBAGE, PHASES, REST


def steps_of(sampling: StepSampling):
    """Yield for each step whether it is sampled."""
    while True:
        length = sampling.run_length()
        for _ in range(10**6 if length is None else length):
            yield sampling.detailed
        sampling.switch()


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9])
def test_the_requested_share_of_steps_is_sampled(share):
    looked = list(islice(steps_of(StepSampling(share)), 20_000))
    assert sum(looked) / len(looked) == pytest.approx(share, rel=0.1)


def test_the_sampled_steps_follow_no_rhythm():
    """A program that stalls on every second batch must not always be sampled on the other ones."""
    looked = list(islice(steps_of(StepSampling(0.3)), 40_000))
    for period in (2, 3, 4, 8):
        for phase in range(period):
            part = looked[phase::period]
            assert sum(part) / len(part) == pytest.approx(0.3, rel=0.1)


def test_a_share_of_all_or_none_never_switches():
    for share in (0.0, 1.0):
        sampling = StepSampling(share)
        assert sampling.detailed == bool(share)
        assert sampling.run_length() is None


def test_the_programs_random_numbers_are_left_alone():
    import random

    random.seed(3)
    expected = random.Random(3).random()
    list(islice(steps_of(StepSampling(0.3)), 100))
    assert random.random() == expected


def test_long_steps_are_all_sampled():
    assert share_of_steps(1.01 * SECONDS_OF_DETAIL / ALLOWED, planned_steps=10_000) == 1.0


def test_every_step_of_a_short_window_is_sampled():
    assert share_of_steps(0.001, planned_steps=FEWEST) == 1.0
    assert share_of_steps(0.001, planned_steps=FEWEST // 2) == 1.0


def test_short_steps_cost_no_more_than_allowed():
    share = share_of_steps(0.005, planned_steps=100_000)
    assert share * SECONDS_OF_DETAIL <= ALLOWED * 0.005 * 1.0001


def index(phase: str) -> int:
    return PHASES.index(phase)


def by_name(values: list[float]) -> dict[str, float]:
    return {name: value for name, value in zip(PHASES, values, strict=True) if value}


def played(detailed: bool, clock: Clock, start: int) -> int:
    """Play a step of data 30 (10 of them copying), forward 20, backward 40 and rest 10."""
    clock.look(detailed, start)
    clock.enter(index(DATA), start)
    if detailed:
        clock.enter(index(COPY), start + 5)
        clock.leave(index(COPY), start + 15)
    clock.leave(index(DATA), start + 30)
    if detailed:
        clock.enter(index(FORWARD), start + 30)
        clock.leave(index(FORWARD), start + 50)
        clock.enter(index(BACKWARD), start + 50)
        clock.leave(index(BACKWARD), start + 90)
    clock.lap(start + 100)
    return start + 100


def test_unsampled_steps_are_assumed_to_be_like_the_sampled_ones():
    clock = Clock(0)
    now = 0
    for detailed in (True, False, False, False):
        now = played(detailed, clock, now)
    spent = by_name(spread(clock.totals, clock.fed, clock.unseen))
    assert spent == pytest.approx({DATA: 80, COPY: 40, FORWARD: 80, BACKWARD: 160, REST: 40})


def test_a_long_wait_for_data_in_an_unsampled_step_counts_in_full():
    clock = Clock(0)
    now = played(True, clock, 0)
    clock.look(False, now)
    clock.enter(index(DATA), now)
    clock.leave(index(DATA), now + 900)
    spent = by_name(spread(clock.totals, clock.fed, clock.unseen))
    assert spent[DATA] + spent[COPY] == pytest.approx(930)
    assert spent[FORWARD] == 20


def test_evaluation_and_garbage_are_counted_in_unsampled_steps_too():
    clock = Clock(0)
    now = played(True, clock, 0)
    clock.look(False, now)
    clock.enter(index(GARBAGE), now)
    clock.leave(index(GARBAGE), now + 7)
    clock.evaluate(True, now + 7)
    clock.evaluate(False, now + 50)
    spent = by_name(spread(clock.totals, clock.fed, clock.unseen))
    assert spent[GARBAGE] == 7
    assert spent[EVALUATION] == 43


def test_without_a_sampled_step_all_time_is_data_or_rest():
    clock = Clock(0)
    played(False, clock, 0)
    assert by_name(spread(clock.totals, clock.fed, clock.unseen)) == {DATA: 30, REST: 70}

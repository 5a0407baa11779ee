"""Each nanosecond of the training thread belongs to exactly one phase."""

from __future__ import annotations

from itertools import count

from hotlap.observe.clock import Clock
from hotlap.records.observation import DATA, EVALUATION, FORWARD, OPTIMIZER, PHASES, REST, SYNC


def index(name: str) -> int:
    return PHASES.index(name)


def spent(clock: Clock, now: int) -> dict[str, int]:
    clock.lap(now)
    return {name: total for name, total in zip(clock.names, clock.totals, strict=True) if total}


def test_time_outside_every_phase_is_the_rest():
    clock = Clock(1000)
    assert spent(clock, 1007) == {REST: 7}
    assert clock.current == REST


def test_the_time_of_an_inner_phase_is_subtracted_from_the_outer_one():
    clock = Clock(1000)
    clock.enter(index(FORWARD), 1000)
    clock.enter(index(SYNC), 1010)
    clock.leave(index(SYNC), 1013)
    clock.leave(index(FORWARD), 1018)
    assert spent(clock, 1020) == {FORWARD: 15, SYNC: 3, REST: 2}


def test_totals_add_up_to_the_wall_clock_whatever_happens():
    clock, ticks, now = Clock(1000), count(1), 1000
    for _ in range(20):
        for name in (DATA, FORWARD, SYNC):
            clock.enter(index(name), now)
            now += next(ticks)
        clock.leave(index(FORWARD), now)
        now += next(ticks)
        clock.leave(index(OPTIMIZER), now)
        clock.evaluate(next(ticks) % 2 == 0, now)
        now += next(ticks)
        clock.leave(index(DATA), now)
    assert sum(spent(clock, now).values()) == now - 1000


def test_a_phase_entered_twice_must_be_left_twice():
    clock = Clock(0)
    clock.enter(index(FORWARD), 0)
    clock.enter(index(FORWARD), 0)
    clock.leave(index(FORWARD), 4)
    assert clock.current == FORWARD
    clock.leave(index(FORWARD), 8)
    assert clock.current == REST
    assert spent(clock, 8) == {FORWARD: 8}


def test_phases_left_open_by_an_exception_end_with_the_phase_around_them():
    clock = Clock(0)
    clock.enter(index(FORWARD), 0)
    clock.enter(index(DATA), 0)
    clock.enter(index(SYNC), 0)
    clock.leave(index(FORWARD), 3)
    assert clock.current == REST
    assert spent(clock, 5) == {SYNC: 3, REST: 2}


def test_leaving_a_phase_that_was_never_entered_changes_nothing():
    clock = Clock(0)
    clock.enter(index(FORWARD), 0)
    clock.leave(index(OPTIMIZER), 3)
    assert clock.current == FORWARD
    clock.leave(index(FORWARD), 6)
    assert spent(clock, 6) == {FORWARD: 6}


def test_open_phases_are_discarded_when_another_thread_turns_out_to_train():
    clock = Clock(0)
    clock.enter(index(DATA), 0)
    clock.reset(5)
    assert clock.current == REST
    clock.enter(index(FORWARD), 5)
    clock.leave(index(FORWARD), 14)
    assert spent(clock, 14) == {FORWARD: 9}


def test_while_evaluating_every_phase_is_evaluation():
    clock = Clock(0)
    clock.enter(index(FORWARD), 0)
    clock.evaluate(True, 1)
    assert clock.current == EVALUATION
    clock.enter(index(DATA), 11)
    clock.leave(index(DATA), 21)
    clock.evaluate(True, 21)
    clock.evaluate(False, 31)
    assert clock.current == FORWARD
    assert spent(clock, 33) == {EVALUATION: 30, FORWARD: 3}


def test_a_user_span_is_one_phase_of_its_own():
    clock = Clock(0)
    phase = clock.phase("span:augment")
    assert clock.phase("span:augment") == phase == len(PHASES)
    clock.enter(phase, 0)
    clock.leave(phase, 6)
    assert spent(clock, 6) == {"span:augment": 6}


def test_a_phase_is_inside_all_that_it_was_entered_from():
    clock = Clock(0)
    clock.enter(index(DATA), 0)
    clock.enter(index(SYNC), 0)
    assert clock.inside(index(DATA))
    assert clock.inside(index(SYNC))
    assert not clock.inside(index(FORWARD))


def test_a_copy_of_the_clock_is_independent():
    clock = Clock(0)
    clock.enter(index(FORWARD), 0)
    other = clock.copy()
    other.leave(index(FORWARD), 3)
    other.enter(other.phase("span:mine"), 3)
    assert (other.current, clock.current) == ("span:mine", FORWARD)
    assert spent(clock, 5) == {FORWARD: 5}

"""Each nanosecond of the training thread belongs to exactly one phase."""

from __future__ import annotations

import threading
from itertools import count

import pytest

from hotlap.model.observation import DATA, EVALUATION, FORWARD, OPTIMIZER, PHASES, REST, SYNC
from hotlap.observe import clock as clock_module
from hotlap.observe.clock import Clock


class Time:
    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def time(monkeypatch) -> Time:
    time = Time()
    monkeypatch.setattr(clock_module, "perf_counter_ns", time)
    return time


def index(name: str) -> int:
    return PHASES.index(name)


def spent(clock: Clock) -> dict[str, int]:
    clock.lap()
    return {name: total for name, total in zip(clock.names, clock.totals, strict=True) if total}


def test_time_outside_every_phase_is_the_rest(time):
    clock = Clock()
    time.now += 7
    assert spent(clock) == {REST: 7}
    assert clock.current == REST


def test_an_inner_phase_takes_its_time_out_of_the_outer_one(time):
    clock = Clock()
    clock.enter(index(FORWARD))
    time.now += 10
    clock.enter(index(SYNC))
    time.now += 3
    clock.leave(index(SYNC))
    time.now += 5
    clock.leave(index(FORWARD))
    time.now += 2
    assert spent(clock) == {FORWARD: 15, SYNC: 3, REST: 2}


def test_totals_add_up_to_the_wall_clock_whatever_happens(time):
    clock, ticks = Clock(), count(1)
    began = time.now
    for _ in range(20):
        for name in (DATA, FORWARD, SYNC):
            clock.enter(index(name))
            time.now += next(ticks)
        clock.leave(index(FORWARD))
        time.now += next(ticks)
        clock.leave(index(OPTIMIZER))
        clock.evaluate(next(ticks) % 2 == 0)
        time.now += next(ticks)
        clock.leave(index(DATA))
    assert sum(spent(clock).values()) == time.now - began


def test_a_phase_entered_twice_is_left_twice(time):
    clock = Clock()
    clock.enter(index(FORWARD))
    clock.enter(index(FORWARD))
    time.now += 4
    clock.leave(index(FORWARD))
    time.now += 4
    assert clock.current == FORWARD
    clock.leave(index(FORWARD))
    assert clock.current == REST
    assert spent(clock) == {FORWARD: 8}


def test_phases_that_an_exception_skipped_end_with_the_phase_around_them(time):
    clock = Clock()
    clock.enter(index(FORWARD))
    clock.enter(index(DATA))
    clock.enter(index(SYNC))
    time.now += 3
    clock.leave(index(FORWARD))
    assert clock.current == REST
    time.now += 2
    assert spent(clock) == {SYNC: 3, REST: 2}


def test_leaving_a_phase_that_was_never_entered_changes_nothing(time):
    clock = Clock()
    clock.enter(index(FORWARD))
    time.now += 3
    clock.leave(index(OPTIMIZER))
    assert clock.current == FORWARD
    time.now += 3
    clock.leave(index(FORWARD))
    assert spent(clock) == {FORWARD: 6}


def on_another_thread(function) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_other_threads_are_not_heard(time):
    clock = Clock()
    clock.enter(index(FORWARD))

    def elsewhere():
        clock.enter(index(DATA))
        clock.evaluate(True)
        clock.leave(index(FORWARD))

    on_another_thread(elsewhere)
    time.now += 5
    assert clock.current == FORWARD
    assert spent(clock) == {FORWARD: 5}


def test_the_clock_moves_to_the_thread_that_trains(time):
    clock = Clock()
    clock.enter(index(DATA))
    seen = []

    def training():
        clock.move_to(threading.get_ident())
        clock.enter(index(FORWARD))
        time.now += 9
        seen.append(clock.current)
        clock.leave(index(FORWARD))

    on_another_thread(training)
    assert seen == [FORWARD]
    assert clock.current == REST
    assert spent(clock) == {FORWARD: 9}


def test_while_evaluating_every_phase_is_evaluation(time):
    clock = Clock()
    clock.enter(index(FORWARD))
    time.now += 1
    clock.evaluate(True)
    assert clock.current == EVALUATION
    time.now += 10
    clock.enter(index(DATA))
    time.now += 10
    clock.leave(index(DATA))
    clock.evaluate(True)
    time.now += 10
    clock.evaluate(False)
    assert clock.current == FORWARD
    time.now += 2
    assert spent(clock) == {EVALUATION: 30, FORWARD: 3}


def test_a_users_span_is_a_phase_of_its_own_made_once(time):
    clock = Clock()
    phase = clock.phase("span:augment")
    assert clock.phase("span:augment") == phase == len(PHASES)
    clock.enter(phase)
    time.now += 6
    clock.leave(phase)
    assert spent(clock) == {"span:augment": 6}

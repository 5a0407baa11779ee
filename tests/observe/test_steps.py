"""The state at the end of a step is recorded. test_story.py covers how loops divide into steps."""

from __future__ import annotations

from hotlap.observe.clock import Clock
from hotlap.observe.steps import Boundary, StepClock
from hotlap.records.observation import OPTIMIZER, PHASES, REST

D, G = 1, 2


def test_a_step_ends_at_its_last_optimizer_step_not_at_the_next_batch():
    clock = Clock(0)
    steps = StepClock(clock)
    clock.enter(PHASES.index(OPTIMIZER), 10)
    clock.leave(PHASES.index(OPTIMIZER), 30)
    steps.optimizer_ended(35, D, 1, "event")
    clock.lap(100)
    boundary = steps.close()
    assert isinstance(boundary, Boundary)
    assert (boundary.at, boundary.backwards, boundary.event) == (35, 1, "event")
    spent = dict(zip(PHASES, boundary.totals, strict=True))
    assert (spent[REST], spent[OPTIMIZER]) == (15, 20)


def test_the_last_of_several_optimizers_ends_the_step():
    steps = StepClock(Clock(0))
    steps.optimizer_ended(10, D, 1, None)
    steps.optimizer_ended(20, G, 2, None)
    boundary = steps.close()
    assert boundary is not None
    assert (boundary.at, boundary.backwards) == (20, 2)
    assert steps.closed == 1


def test_closing_when_no_step_is_pending_does_nothing():
    steps = StepClock(Clock(0))
    assert steps.close() is None
    steps.optimizer_ended(10, D, 1, None)
    assert steps.close() is not None
    assert steps.close() is None
    assert steps.closed == 1


def test_every_optimizer_step_is_counted_and_remembered_until_its_step_is_over():
    steps = StepClock(Clock(0))
    steps.optimizer_ended(10, D, 1, None)
    steps.optimizer_ended(20, G, 2, None)
    assert steps.optimizer_steps == 2
    assert steps.has_stepped(D)
    assert steps.has_stepped(G)
    steps.close()
    assert not steps.has_stepped(D)
    assert not steps.has_stepped(G)

"""A step is what a user counts, however the loop is written."""

from __future__ import annotations

from hotlap.observe.clock import Clock
from hotlap.observe.steps import Boundary, StepClock


class Loop:
    """A training loop in shorthand; `steps` holds the number of backward calls so far at the end of each step."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self._clock = StepClock(Clock(), lambda boundary: self.steps.append(boundary.backwards))
        self._backwards = 0
        self._optimizers: dict[str, object] = {}

    def run(self, actions: str) -> list[int]:
        """b: a batch is asked for, l: backward, any capital: that optimizer steps, with L as LBFGS."""
        for action in actions:
            if action == "b":
                self._clock.close()
            elif action == "l":
                self._backwards += 1
            elif action.isupper():
                self._step(self._optimizers.setdefault(action, object()), inner=3 if action == "L" else 0)
        return self.steps

    def _step(self, optimizer: object, inner: int) -> None:
        self._clock.optimizer_begins(optimizer)
        self._backwards += inner
        self._clock.optimizer_ended(optimizer, self._backwards, None)

    @property
    def clock(self) -> StepClock:
        return self._clock


def test_a_plain_loop():
    assert Loop().run("blA blA blA b") == [1, 2, 3]


def test_a_step_is_known_to_have_ended_only_when_the_next_begins():
    assert Loop().run("blA") == []
    assert Loop().run("blA b") == [1]


def test_a_loop_without_a_loader():
    assert Loop().run("lA lA lA lA") == [1, 2, 3]


def test_accumulated_micro_batches_are_one_step():
    assert Loop().run("bl bl bl blA bl bl bl blA b") == [4, 8]


def test_the_two_optimizers_of_a_gan_are_one_step():
    assert Loop().run("blDlG blDlG b") == [2, 4]
    assert Loop().run("lDlG lDlG lD") == [2, 4], "without a loader"


def test_five_critic_steps_for_one_of_the_generator_on_a_batch_each():
    """Each batch the critic steps on is a step; the generator's joins the last of five."""
    assert Loop().run(("blC" * 4 + "blClG") * 2 + "b") == [1, 2, 3, 4, 6, 7, 8, 9, 10, 12]


def test_five_critic_steps_on_one_batch():
    assert Loop().run("blClClClClClG b") == [1, 2, 3, 4, 6]


def test_lbfgs_evaluates_several_times_inside_one_step():
    assert Loop().run("bL bL b") == [3, 6]


def test_two_optimizers_with_different_rhythms():
    assert Loop().run("blA blAB blA blAB b") == [1, 2, 3, 4]


def test_what_is_taken_is_the_state_at_the_last_optimizer_step_not_at_the_next_batch():
    taken: list[Boundary] = []
    clock = Clock()
    steps = StepClock(clock, taken.append)
    optimizer = object()
    steps.optimizer_begins(optimizer)
    steps.optimizer_ended(optimizer, 1, "event")
    ended, totals = clock.lap(), list(clock.totals)
    steps.close()
    (boundary,) = taken
    assert boundary.at <= ended
    assert boundary.event == "event"
    assert boundary.totals is not clock.totals
    assert all(then <= now for then, now in zip(boundary.totals, totals, strict=True))


def test_closing_when_no_step_is_pending_does_nothing():
    loop = Loop()
    loop.clock.close()
    loop.run("blA b")
    loop.clock.close()
    assert loop.steps == [1]


def test_every_optimizer_step_is_counted_and_known_until_its_step_is_over():
    loop = Loop()
    loop.run("blDlG")
    optimizers = list(loop._optimizers.values())
    assert loop.clock.optimizer_steps == 2
    assert all(loop.clock.has_stepped(one) for one in optimizers)
    loop.run("b")
    assert not any(loop.clock.has_stepped(one) for one in optimizers)

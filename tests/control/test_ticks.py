"""One tick is one step of a training, whatever optimizers it uses."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import torch

from hotlap.control.ticks import NO_OPTIMIZER, Ticks
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seam


class Heard:
    def __init__(self) -> None:
        guard = Guard()
        names = ("stepping", "backward", "iterating", "evaluating")
        self.seams: Any = SimpleNamespace(**{name: Seam(name, guard) for name in names})
        self.ticks = 0
        self.clock = Ticks(self.seams, self._tick)
        self.clock.begin()

    def _tick(self, optimizer: Any) -> None:
        self.ticks += 1

    def step(self, optimizer: Any) -> None:
        self.seams.backward.after(None, (), {}, None)
        self.seams.stepping.after(optimizer, None)

    def backward(self) -> None:
        self.seams.backward.after(None, (), {}, None)


def optimizer_of(*parameters: torch.Tensor) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters or (torch.zeros(1),), lr=0.1)


def test_one_optimizer_ticks_with_each_of_its_steps() -> None:
    heard, optimizer = Heard(), optimizer_of()
    for _ in range(104):
        heard.step(optimizer)
    assert heard.ticks == 100


def test_of_two_optimizers_the_one_that_steps_less_often_ticks() -> None:
    heard, often, seldom = Heard(), optimizer_of(), optimizer_of()
    for _ in range(50):
        for _ in range(2):
            heard.step(often)
        heard.step(seldom)
    assert 44 <= heard.ticks <= 47


def test_a_new_optimizer_for_the_same_weights_counts_as_the_same() -> None:
    heard, weight = Heard(), torch.zeros(1)
    for _ in range(10):
        optimizer = optimizer_of(weight)
        for _ in range(20):
            heard.step(optimizer)
    assert heard.ticks == 196


def test_a_model_trained_later_ticks_too() -> None:
    heard, first, second = Heard(), optimizer_of(), optimizer_of()
    for _ in range(54):
        heard.step(first)
    for _ in range(200):
        heard.step(second)
    assert heard.ticks == 50 + 200 - 64 - 4


def test_without_an_optimizer_backward_passes_tick() -> None:
    heard = Heard()
    for _ in range(NO_OPTIMIZER + 100):
        heard.backward()
    assert heard.ticks == 100


def test_the_seams_tell_a_program_that_updates_its_weights_by_hand() -> None:
    heard = Heard()
    heard.seams.without_optimizer = False
    for _ in range(NO_OPTIMIZER + 1):
        heard.backward()
    assert heard.seams.without_optimizer
    heard.step(optimizer_of())
    assert not heard.seams.without_optimizer


def test_many_backward_passes_per_step_do_not_tick() -> None:
    heard, optimizer = Heard(), optimizer_of()
    for _ in range(20):
        for _ in range(64):
            heard.backward()
        heard.step(optimizer)
    assert heard.ticks == 16


def test_updating_weights_by_hand_after_one_step_ticks_by_backward() -> None:
    heard = Heard()
    heard.step(optimizer_of())
    for _ in range(400):
        heard.backward()
    assert heard.ticks == 400 - NO_OPTIMIZER


def test_a_training_in_another_thread_takes_over_when_the_first_ends() -> None:
    heard, first, second = Heard(), optimizer_of(), optimizer_of()
    thread = threading.Thread(target=lambda: [heard.step(first) for _ in range(14)])
    thread.start()
    thread.join()
    assert heard.ticks == 10
    for _ in range(200):
        heard.step(second)
    assert heard.ticks > 100


def test_an_evaluation_without_a_loader_is_noticed_by_the_model_that_is_set_to_evaluate() -> None:
    heard, optimizer = Heard(), optimizer_of()
    for _ in range(8):
        heard.step(optimizer)
    assert not heard.clock.iterated_now
    heard.seams.evaluating.before(torch.nn.Linear(1, 1), (), {})
    assert heard.clock.iterated_now

"""What counts as one step of a training, whatever it steps with."""

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
        self.seams: Any = SimpleNamespace(**{name: Seam(name, guard) for name in ("stepping", "backward", "iterating")})
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
    heard, one = Heard(), optimizer_of()
    for _ in range(104):
        heard.step(one)
    assert heard.ticks == 100


def test_of_two_the_one_that_steps_less_often_ticks() -> None:
    heard, often, seldom = Heard(), optimizer_of(), optimizer_of()
    for _ in range(50):
        for _ in range(2):
            heard.step(often)
        heard.step(seldom)
    assert 44 <= heard.ticks <= 47


def test_an_optimizer_made_anew_for_the_same_weights_is_the_same() -> None:
    heard, weight = Heard(), torch.zeros(1)
    for _ in range(10):
        one = optimizer_of(weight)
        for _ in range(20):
            heard.step(one)
    assert heard.ticks == 196


def test_another_model_that_is_trained_later_ticks_too() -> None:
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


def test_many_backward_passes_for_a_step_do_not_tick() -> None:
    heard, one = Heard(), optimizer_of()
    for _ in range(20):
        for _ in range(64):
            heard.backward()
        heard.step(one)
    assert heard.ticks == 16


def test_one_step_and_then_weights_by_hand_ticks_by_backward() -> None:
    heard = Heard()
    heard.step(optimizer_of())
    for _ in range(400):
        heard.backward()
    assert heard.ticks == 400 - NO_OPTIMIZER


def test_a_training_in_another_thread_takes_over_when_the_first_is_over() -> None:
    heard, first, second = Heard(), optimizer_of(), optimizer_of()
    elsewhere = threading.Thread(target=lambda: [heard.step(first) for _ in range(14)])
    elsewhere.start()
    elsewhere.join()
    assert heard.ticks == 10
    for _ in range(200):
        heard.step(second)
    assert heard.ticks > 100

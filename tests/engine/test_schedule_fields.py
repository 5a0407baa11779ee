"""Fields of schedules mean what their names say, also by position, and values that cannot be followed are rejected."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch.optim import lr_scheduler

from hotlap.engine import Cosine, FromTorch, Linear, Schedule, Steps
from hotlap.engine.errors import BadRecipe
from hotlap.engine.schedule import Rates
from tests.engine.training import fitted


def by_epoch(schedule, epochs=10):
    rates = Rates([1.0], schedule, warmup=0, epochs=epochs, steps=1)
    found = []
    for epoch in range(epochs):
        found.append(round(rates.table(epoch).item(), 6))
        rates.epoch_ended(1.0)
    return found


def test_from_torch_accepts_its_function_by_position():
    found = by_epoch(FromTorch(lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.1)), 6)
    assert found == [1.0, 1.0, 0.1, 0.1, 0.01, 0.01]


def test_steps_accepts_its_shares_by_position():
    expected = [1.0] * 3 + [0.1] * 3 + [0.01] * 4
    assert by_epoch(Steps((0.3, 0.6))) == by_epoch(Steps(at=[0.3, 0.6])) == expected
    assert by_epoch(Steps((0.3,), factor=0.5)) == [1.0] * 3 + [0.5] * 7
    assert by_epoch(Steps(())) == [1.0] * 10


@pytest.mark.parametrize("make", [lambda: Cosine("epoch"), lambda: Linear(0.1), lambda: Steps((0.5,), 0.2), FromTorch])
def test_other_fields_are_keyword_only(make):
    with pytest.raises(TypeError, match="positional argument"):
        make()


@pytest.mark.parametrize("make", [lambda: Steps(end=0.1), lambda: FromTorch(lr_scheduler.ConstantLR, end=0.1)])
def test_rejects_an_end_that_would_be_ignored(make):
    with pytest.raises(TypeError, match="unexpected keyword argument 'end'"):
        make()


def test_a_custom_schedule_takes_its_own_fields_first():
    @dataclass(frozen=True)
    class Power(Schedule):
        exponent: float = 2.0

        def factors(self, done):
            return (1.0 - done) ** self.exponent

    assert by_epoch(Power(3.0, by="epoch"), 3) == [1.0, 0.125, 0.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cosine(end=-1.0), r"Cosine\(end=-1.0\); use a number, 0 or more"),
        (lambda: Cosine(end="x"), r"Cosine\(end='x'\); use a number, 0 or more"),
        (lambda: Linear(end=True), r"Linear\(end=True\); use a number, 0 or more"),
        (lambda: Linear(end=math.nan), r"Linear\(end=nan\); use a number, 0 or more"),
        (lambda: Linear(end=math.inf), r"Linear\(end=inf\); use a number, 0 or more"),
        (lambda: Steps(factor="x"), r"Steps\(factor='x'\); use a number, 0 or more"),
        (lambda: Steps(factor=-0.1), r"Steps\(factor=-0.1\); use a number, 0 or more"),
        (lambda: Steps(at=(3, 6)), r"Steps\(at=\(3, 6\)\); use a tuple of shares of the phase, each from 0 to 1"),
        (lambda: Steps(at=0.5), r"Steps\(at=0.5\); use a tuple of shares of the phase"),
        (lambda: Steps("0.5"), r"Steps\(at='0.5'\); use a tuple of shares of the phase"),
        (lambda: Steps((0.5, "x")), r"Steps\(at=\(0.5, 'x'\)\); use a tuple of shares of the phase"),
        (lambda: FromTorch(None), r"FromTorch\(make=None\); use a function of the optimizer, such as lambda"),
        (lambda: FromTorch(len, by="batch"), "by='batch' for a schedule; use one of step, epoch"),
        (lambda: Steps(by="batch"), "by='batch' for a schedule; use one of step, epoch"),
    ],
)
def test_rejects_a_bad_value_when_the_schedule_is_made(make, message):
    with pytest.raises(BadRecipe, match=message):
        make()


OTHER = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (FromTorch(lambda optimizer: None), r"make= of FromTorch returned NoneType; return a torch scheduler, such as"),
        (FromTorch(lambda optimizer: optimizer), r"make= of FromTorch returned SGD; return a torch scheduler, such as"),
        (
            FromTorch(lambda optimizer: lr_scheduler.StepLR(OTHER, 2)),
            "a StepLR of another optimizer; create it for the one",
        ),
        (
            FromTorch(lr_scheduler.ReduceLROnPlateau, by="step"),
            r'ReduceLROnPlateau follows the score of an epoch; use FromTorch\(make, by="epoch"\)',
        ),
    ],
)
def test_rejects_an_unusable_scheduler_before_training(schedule, message):
    seen = []
    with pytest.raises(BadRecipe, match=message):
        fitted(schedule=schedule, callbacks=[seen.append])
    assert not seen


def test_composed_schedulers_are_followed():
    def warmed(optimizer):
        first, then = lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2), lr_scheduler.ExponentialLR(optimizer, 0.5)
        return lr_scheduler.SequentialLR(optimizer, [first, then], [2])

    assert by_epoch(FromTorch(warmed), 4) == [0.5, 0.75, 1.0, 0.5]
    assert by_epoch(FromTorch(lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)), 3) == [
        1.0,
        1.0,
        0.1,
    ]

"""Trial steps, which only find out how to train, leave nothing behind."""

from __future__ import annotations

import torch
from torch import nn

from tests.engine.tape import EmulatedRecorder
from tests.engine.training import Rows, fitted, numbers

MANY = Rows(*numbers(160 * 4))
TRIED = {"batch_size": 4, "epochs": 1, "train": MANY, "onednn": "auto"}


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(6, 1), 0
        self.register_buffer("replaced", torch.zeros(()))
        self.register_buffer("written", torch.zeros(()))

    def forward(self, inputs):
        if self.training:
            self.calls += 1
            self.replaced = self.replaced + 1
            self.written.add_(1)
        return self.layer(inputs)


class Replacing(torch.optim.Optimizer):
    """An optimizer that replaces its state at each step."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["steps"] = state.get("steps", torch.zeros(())) + 1
                parameter.sub_(group["lr"] * parameter.grad)


class Seldom(nn.Module):
    """A model that uses one of its layers only in every eighth step."""

    def __init__(self):
        super().__init__()
        self.often, self.seldom = nn.Linear(6, 1), nn.Linear(6, 1)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, inputs):
        if not self.training:
            return self.often(inputs)
        self.step.add_(1)
        return self.often(inputs) + (self.seldom(inputs) if self.step % 8 == 2 else 0)


def tried(**options):
    """Train long enough that the engine tries several ways of computing on the CPU."""
    said = []
    made, _ = fitted(say=said.append, **{**TRIED, **options})
    assert "without oneDNN" in said[0]
    return made


def test_attributes_and_buffers_count_only_training_steps():
    model = tried(model=Counting).model
    assert (model.calls, float(model.replaced), float(model.written)) == (160, 160, 160)


def test_trial_steps_do_not_count_in_a_replaced_optimizer_state():
    made = tried(optimizer=Replacing)
    assert {float(state["steps"]) for state in made.optimizer.state.values()} == {160}


def test_trial_steps_do_not_count_in_an_optimizer_state_made_during_them():
    made = tried(model=Seldom)
    steps = {name: float(made.optimizer.state[parameter]["step"]) for name, parameter in made.model.named_parameters()}
    assert steps == {"often.weight": 160, "often.bias": 160, "seldom.weight": 20, "seldom.bias": 20}


def test_a_model_that_replaces_a_buffer_is_not_captured(monkeypatch):
    class Replaced(Counting):
        def forward(self, inputs):
            if self.training:
                self.replaced = self.replaced + 1
            return self.layer(inputs)

    said = []
    made, _ = fitted(say=said.append, model=Replaced, recorder=EmulatedRecorder(), monkeypatch=monkeypatch)
    assert "forward changes the attribute replaced" in said[0]
    assert float(made.model.replaced) == 3 * 5

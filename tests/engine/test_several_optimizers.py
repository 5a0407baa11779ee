"""Several optimizers, each for weights of its own: along one loss, or each along its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.engine import Checkpoints, Cosine
from hotlap.engine.errors import BadRecipe, CheckpointOfAnotherModel
from tests.engine.training import Rows, fitted, numbers, outcome, same


def split(first=torch.optim.Adam, second=torch.optim.Adam):
    """Return what makes two optimizers of Net's weights, in their order."""

    def make(parameters, lr):
        parameters = list(parameters)
        return [first(parameters[:4], lr=lr), second(parameters[4:], lr=lr)]

    return make


def with_momentum(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


@pytest.mark.parametrize(
    "options", [{}, {"clip": 0.5, "schedule": Cosine(), "warmup": 3}, {"accumulate": 2, "ema": 0.9}]
)
def test_two_optimizers_train_like_one_with_their_weights(options):
    same(outcome(*fitted(optimizer=split(), **options)), outcome(*fitted(**options)))


def test_each_optimizer_steps_in_its_own_way():
    made, _ = fitted(optimizer=split(second=torch.optim.SGD), epochs=1)
    adam, sgd = made.optimizer.optimizers
    assert len(adam.state) == 4
    assert not any(value is not None for state in sgd.state.values() for value in state.values())
    assert adam.param_groups[0]["lr"] == sgd.param_groups[0]["lr"] == 2**-6


def test_a_resumed_run_has_the_state_of_both(tmp_path):
    make = split(second=with_momentum)
    whole = outcome(*fitted(optimizer=make))
    kept = Checkpoints(tmp_path)
    fitted(optimizer=make, epochs=1, checkpoints=kept)
    same(outcome(*fitted(optimizer=make, resume=True, checkpoints=kept)), whole)
    with pytest.raises(CheckpointOfAnotherModel, match="trained with optimizer Adam and SGD, but this run has Adam"):
        fitted(resume=True, checkpoints=kept, epochs=4)


def test_learning_rates_are_tried_with_both():
    made, _ = fitted(optimizer=split(), epochs=1)
    assert made.try_learning_rates(numbers(), steps=20).rates


class Pair(nn.Module):
    """A generator and a critic of what it makes."""

    def __init__(self):
        super().__init__()
        self.generator, self.critic = nn.Linear(6, 1), nn.Linear(1, 1)

    def forward(self, inputs):
        return self.generator(inputs)


def adversarial(model, batch):
    inputs, real = batch
    fooled, known = model.critic(model.generator(inputs)), model.critic(real)
    return {"generator": -fooled.mean(), "critic": fooled.mean() - known.mean() + known.square().mean()}


def by_name(model):
    return {
        "generator": torch.optim.SGD(model.generator.parameters(), lr=0.1),
        "critic": torch.optim.SGD(model.critic.parameters(), lr=0.05, momentum=0.5),
    }


def test_each_optimizer_follows_the_gradient_of_its_own_loss():
    inputs, real = numbers(64)
    torch.manual_seed(3)
    by_hand = Pair()
    optimizers = by_name(by_hand)
    for first in range(0, 64, 16):
        losses = adversarial(by_hand, (inputs[first : first + 16], real[first : first + 16]))
        for name, optimizer in optimizers.items():
            weights = optimizer.param_groups[0]["params"]
            gradients = torch.autograd.grad(losses[name], weights, retain_graph=True)
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.grad = gradient
        for optimizer in optimizers.values():
            optimizer.step()
    torch.manual_seed(3)
    model = Pair()
    options = {"loss": None, "step": adversarial, "optimizer": lambda parameters, lr: by_name(model), "shuffle": False}
    made, history = fitted(model=model, train=Rows(inputs, real), epochs=1, **options)
    for expected, found in zip(by_hand.parameters(), made.model.parameters(), strict=True):
        torch.testing.assert_close(found, expected)
    assert set(history.last.losses) == {"generator", "critic"}


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (lambda weights, lr: "adam", "the optimizer is a str; give one of torch.optim, a list"),
        (lambda weights, lr: [], "the optimizer is a list; give one of torch.optim, a list"),
        (lambda weights, lr: [torch.optim.SGD(list(weights), lr=lr)] * 2, "6 of the 6 tensors to train belong to two"),
        (
            lambda weights, lr: {"a": torch.optim.SGD(list(weights), lr=lr)},
            "the optimizers are for the losses a, but there is a single one",
        ),
    ],
)
def test_what_are_no_optimizers_of_the_weights_is_refused(optimizer, words):
    with pytest.raises(BadRecipe, match=words):
        fitted(optimizer=optimizer)

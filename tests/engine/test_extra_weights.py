"""Weights that are frozen, unfrozen later or trained beside the model move when they should, and only then."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.engine.data import Tensors
from hotlap.engine.errors import BadRecipe
from hotlap.engine.order import epoch_order
from hotlap.engine.recipe import Checkpoints, Phase
from tests.engine.regression import DATA, FEW, FIXED, INPUTS, MSE, TARGETS, network, sgd, trainer


def by_hand(model, optimizer, epochs, frozen_epochs=0):
    for epoch in range(epochs):
        model[0].requires_grad_(epoch >= frozen_epochs)
        for rows in epoch_order(64, 0, epoch, torch.device("cpu")).split(16):
            optimizer.zero_grad()
            MSE(model(INPUTS[rows]), TARGETS[rows]).backward()
            optimizer.step()


@pytest.mark.parametrize(
    "more", [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "dampening": 0.5}]
)
def test_sgd_with_momentum_trains_what_a_later_phase_unfreezes(more):
    plain = network()
    by_hand(plain, sgd(plain, **more), 3, frozen_epochs=1)
    model = network()
    trainer(model, sgd(model, **more), phases=(Phase(1, frozen=("0.",)), Phase(2))).fit(FEW)
    for parameter, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected)


def test_sgd_with_momentum_trains_a_head_that_is_used_late():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.early, self.late = nn.Linear(5, 2), nn.Linear(5, 2)

        def forward(self, inputs, used):
            return self.early(inputs) + (self.late(inputs) if float(used[0]) > 0 else 0)

    model = Heads()
    before = model.late.weight.detach().clone()
    used = torch.cat([torch.zeros(32), torch.ones(32)])
    trainer(model, sgd(model, momentum=0.9), shuffle=False, inputs=2).fit(
        Tensors(INPUTS[:64], used, TARGETS[:64]), epochs=1
    )
    assert not torch.equal(model.late.weight, before)


def test_gradients_left_by_another_loop_do_not_move_frozen_weights():
    model = network()
    optimizer = sgd(model)
    MSE(model(INPUTS), TARGETS).backward()
    before = model[0].weight.detach().clone()
    trainer(model, optimizer, phases=(Phase(2, frozen=("0.",)),)).fit(FEW)
    assert torch.equal(model[0].weight, before)
    MSE(model(INPUTS), TARGETS).backward()
    model[0].requires_grad_(False)
    trainer(model, optimizer).fit(FEW, epochs=1)
    assert torch.equal(model[0].weight, before)


class Weighted(nn.Module):
    """A loss with a weight and a count of its own."""

    def __init__(self):
        super().__init__()
        self.logs = nn.Parameter(torch.zeros(2))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, outputs, targets):
        self.seen += 1
        return ((outputs - targets).square().mean(0) * torch.exp(-self.logs) + self.logs).sum()


def weighted(folder=None, **more):
    torch.manual_seed(0)
    model, loss = nn.Linear(5, 2), Weighted()
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.05)
    checkpoints = Checkpoints(folder) if folder else None
    return loss, trainer(model, optimizer, loss, batch_size=8, checkpoints=checkpoints, **more)


def test_trial_steps_do_not_train_a_loss_with_weights():
    loss, own = weighted()
    own.fit(DATA, epochs=2)
    assert loss.seen.item() == 256


def test_a_loss_with_weights_is_resumed(tmp_path):
    whole, own = weighted(tmp_path / "whole", **FIXED)
    own.fit(DATA, epochs=2)
    weighted(tmp_path / "parts", **FIXED)[1].fit(DATA, epochs=1)
    loss, own = weighted(tmp_path / "parts", **FIXED)
    own.fit(DATA, epochs=2, resume=True)
    assert torch.equal(loss.logs, whole.logs)
    assert torch.equal(loss.seen, whole.seen)


def test_rejects_parameters_that_belong_to_neither_model_nor_loss():
    with pytest.raises(BadRecipe, match=r"2 of the 2 tensors of the optimizer.* belong neither"):
        trainer(network(), sgd(nn.Linear(5, 2)))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.tensor, self.list, self.dict, self.number = torch.zeros(1), [], {"n": 0}, 0

    def forward(self, inputs):
        if self.training:
            self.tensor += 1
            self.list.append(1)
            self.dict["n"] += 1
            self.number += 1
        return self.layer(inputs)


def test_trial_steps_do_not_change_what_a_forward_counts():
    model = Counting()
    trainer(model, sgd(model), batch_size=8).fit(DATA, epochs=2)
    assert (model.tensor.item(), len(model.list), model.dict["n"], model.number) == (256, 256, 256, 256)

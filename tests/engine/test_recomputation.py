"""Activation checkpointing recomputes the same activations, without advancing any state twice."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.engine.data import CarriedWindows
from hotlap.engine.recurrent import Recurrent
from tests.engine.regression import FEW, FIXED, network, sgd, trainer


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recomputation_keeps_a_carried_state_right(kind):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent, self.head = Recurrent(kind, 3, 8, state="carry", lanes=4), nn.Linear(8, 1)

        def forward(self, inputs, first):
            return self.head(self.recurrent(inputs, first))

    series = [torch.randn(200, 3, generator=torch.Generator().manual_seed(number)) for number in range(4)]
    data = CarriedWindows(series, 10, [part.cumsum(0)[:, :1] for part in series], 4)
    found = []
    for again in (False, True):
        torch.manual_seed(0)
        model = Net()
        how = {"batch_size": 4, "shuffle": False, "activation_checkpointing": again, "inputs": 2, **FIXED}
        history = trainer(model, torch.optim.SGD(model.parameters(), lr=0.01), **how).fit(data, epochs=2)
        found.append(([record.loss for record in history.epochs], model.recurrent.carried_h.tolist()))
    assert found[0] == found[1]


def test_recomputation_iterates_a_spectral_norm_once():
    losses = []
    for again in (False, True):
        model = network()
        nn.utils.parametrizations.spectral_norm(model[0])
        history = trainer(model, sgd(model), activation_checkpointing=again, **FIXED).fit(FEW, epochs=3)
        losses.append([record.loss for record in history.epochs])
    assert losses[0] == losses[1]

"""Initialisation draws the same weights from the same seed and leaves everything else alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.engine.errors import BadRecipe
from hotlap.engine.initialise import initialise


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(3, 5, 3)
        self.norm = nn.BatchNorm1d(5)
        self.lstm = nn.LSTM(4, 6, num_layers=2)
        self.linear = nn.Linear(200, 300)


@pytest.mark.parametrize("kind", ["kaiming", "xavier", "orthogonal"])
def test_the_same_seed_gives_the_same_weights_and_leaves_the_random_stream_alone(kind):
    first, second = Layers(), Layers()
    before = torch.get_rng_state()
    assert initialise(first, kind, seed=4) == initialise(second, kind, seed=4) == 3
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert torch.equal(first.norm.weight, torch.ones(5))
    assert not first.linear.bias.any()


def test_weights_have_the_expected_spread():
    layers = Layers()
    initialise(layers, "kaiming", seed=0)
    assert layers.linear.weight.std().item() == pytest.approx((2 / 200) ** 0.5, rel=0.05)
    initialise(layers, "xavier", seed=0)
    assert layers.linear.weight.std().item() == pytest.approx((2 / 500) ** 0.5, rel=0.05)


def test_recurrent_weights_are_orthogonal_and_forget_gates_start_open():
    layers = Layers()
    initialise(layers, "xavier", seed=0)
    for gate in layers.lstm.weight_hh_l1.detach().split(6):
        assert torch.allclose(gate @ gate.T, torch.eye(6), atol=1e-5)
    assert torch.equal(layers.lstm.bias_ih_l0[6:12], torch.ones(6))
    assert not layers.lstm.bias_ih_l0[:6].any()


def test_rejects_an_unknown_kind():
    with pytest.raises(BadRecipe, match="unknown initialisation 'lecun'"):
        initialise(Layers(), "lecun")

"""Activations are computed twice where memory is short: by measurement, and as few as will do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.engine import activations
from hotlap.engine.activations import BlockCost, Kept, blocks, line, to_recompute
from hotlap.engine.arithmetic import recomputing
from tests.engine.training import fitted, numbers, outcome, same, trainer

CPU = torch.device("cpu")
MIB = 2**20
FIXED = {"threads": 1, "onednn": "off"}


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down, self.calls = nn.Linear(16, width), nn.Linear(width, 16), 0

    def forward(self, inputs):
        self.calls += 1
        return inputs + self.down(self.up(inputs).relu())


class Deep(nn.Module):
    """Two blocks that keep little for the backward pass, and one that keeps much."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.layers = nn.ModuleList(Layer(width) for width in (16, 4096, 16))
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(16, 1))

    def forward(self, inputs):
        hidden = self.first(inputs)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def kept_by(model, inputs):
    kept = Kept({weight.untyped_storage().data_ptr() for weight in model.parameters()})
    with torch.autograd.graph.saved_tensors_hooks(kept.note, lambda tensor: tensor):
        model(inputs).sum()
    return sum(kept.bytes.values())


def fitted_with(free, monkeypatch, **options):
    said = []
    monkeypatch.setattr(activations, "device_free", lambda device: free)
    found = fitted(model=Deep, activation_checkpointing="auto", say=said.append, **FIXED, **options)
    return found, next(said for said in said if said.startswith("activations"))


def test_nothing_is_computed_twice_where_memory_is_there(monkeypatch):
    (made, _), said = fitted_with(2**40, monkeypatch)
    assert made.recipe.activation_checkpointing == ()
    assert said.endswith("of the 1024.0 GiB that are free, so none are computed twice")


def test_only_the_block_that_keeps_much_is_computed_twice(monkeypatch):
    need = 16 * (4 * 4096 + 6000) + 3 * 4 * sum(weight.numel() for weight in Deep().parameters())
    free = int((need - 16 * 4 * 4096 / 2) / activations.SHARE)  # short by half of what it keeps
    found, said = fitted_with(free, monkeypatch)
    assert found[0].recipe.activation_checkpointing == ("layers.1",)
    assert "so layers.1 compute theirs twice: 256.0 KiB less, for " in said
    same(outcome(*found), outcome(*fitted(model=Deep, **FIXED)))


def test_a_recomputed_block_keeps_as_much_less_as_was_measured():
    model, inputs = Deep(), numbers()[0][:16]
    made = trainer(model=Deep)
    costs = {cost.name: cost for cost in activations._measured(made, (inputs, inputs[:, :1]), 1.0)[1]}
    before = kept_by(model, inputs)
    with recomputing(model, ("layers.1",), CPU):
        less = before - kept_by(model, inputs)
    assert less == costs["layers.1"].saved == 16 * 4 * 4096
    assert model.layers[1].calls == 2


def test_too_little_memory_for_any_choice_is_said(monkeypatch):
    (made, _), said = fitted_with(2**10, monkeypatch)
    assert "layers.1" in made.recipe.activation_checkpointing
    assert said.endswith("it may still not fit, so use smaller batches with accumulate")


def test_blocks_that_free_most_in_a_second_come_first():
    costs = [BlockCost("slow", 8 * MIB, 8.0), BlockCost("fast", 4 * MIB, 1.0), BlockCost("none", 0, 0.1)]
    assert [cost.name for cost in to_recompute(costs, 1)] == ["fast"]
    assert [cost.name for cost in to_recompute(costs, 5 * MIB)] == ["fast", "slow"]
    assert to_recompute(costs, 0) == []
    assert "and no block keeps any that it could compute twice" in line(MIB, 1, [], costs)


def test_layers_one_by_one_are_no_blocks():
    plain = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential(Layer(4), Layer(4)))
    assert list(blocks(plain)) == ["0", "1.0", "1.1"]


def test_weights_that_are_shared_out_cannot_be_measured():
    made = trainer(activation_checkpointing="auto")
    made.processes = type("Shared", (), {"shards": True})()
    with pytest.raises(Exception, match="weights that are shared out have none"):
        activations.settled(made, None)

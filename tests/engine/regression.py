"""A small regression: its data, network, optimizer and trainer."""

from __future__ import annotations

import torch
from torch import nn

from hotlap.engine import Recipe, Trainer
from hotlap.engine.data import Tensors

MSE = nn.functional.mse_loss
GENERATOR = torch.Generator().manual_seed(1)
INPUTS, TARGETS = torch.randn(1024, 5, generator=GENERATOR), torch.randn(1024, 2, generator=GENERATOR)
DATA, FEW = Tensors(INPUTS, TARGETS), Tensors(INPUTS[:64], TARGETS[:64])
FIXED = {"threads": 1, "onednn": "on"}


def quiet(line):
    pass


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))


def trainer(model, optimizer, loss=MSE, say=quiet, **more):
    how = {name: more.pop(name) for name in ("metrics", "train_metrics", "inputs", "step", "evaluate") if name in more}
    recipe = Recipe(**{"batch_size": 16, **more})
    return Trainer(model, loss, optimizer, recipe, device="cpu", say=say, progress=None, **how)


def sgd(model, **more):
    return torch.optim.SGD(model.parameters(), lr=0.1, **more)

"""Three small trainings on which every optimisation is tried."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH = 20, 4
ROWS = STEPS // 2 * BATCH  # two epochs


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(inputs))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())
        self.head = nn.Linear(4, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(inputs).mean((2, 3)))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(3, 5, batch_first=True)
        self.head = nn.Linear(5, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(inputs)[0][:, -1])


SHAPES = {Mlp: (6,), Cnn: (2, 8, 8), Lstm: (5, 3)}
KINDS = tuple(SHAPES)


@dataclass(frozen=True)
class Trained:
    losses: list[float]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    random: list[float]  # what the program draws next


def train(kind: type[nn.Module]) -> Trained:
    torch.manual_seed(0)
    inputs = torch.randn(ROWS, *SHAPES[kind])
    data = TensorDataset(inputs, inputs.flatten(1).sum(1, keepdim=True))
    model, loader = kind(), DataLoader(data, batch_size=BATCH, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = [loss for _ in range(2) for loss in _epoch(model, loader, optimizer)]
    assert len(losses) == STEPS
    return Trained(losses, model, optimizer, torch.rand(2).tolist())


def _epoch(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> Iterator[float]:
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item()


OWNERS = (
    torch, torch.Tensor, torch.autograd, torch.cuda, torch.nn.functional, torch.nn.utils, nn.Module, nn.LSTM,
    DataLoader, torch.utils.data.dataloader._BaseDataLoaderIter, torch.optim.Optimizer, torch.optim.AdamW,
    TensorDataset, *KINDS,
)  # fmt: skip


@contextmanager
def left_as_found() -> Iterator[None]:
    """Asserts that everything hotlap may touch is afterwards as it was."""
    _first_use_of_torch()
    before = [dict(vars(owner)) for owner in OWNERS]
    yield
    for owner, was in zip(OWNERS, before, strict=True):
        now = dict(vars(owner))
        differs = [name for name in was.keys() | now.keys() if was.get(name) is not now.get(name)]
        ours = [name for name in differs if not isinstance(now.get(name), ModuleType)]  # modules may be imported
        assert not ours, f"{owner} has other {sorted(ours)}"


@cache
def _first_use_of_torch() -> None:
    """Torch changes itself at the first optimizer step and the first compilation, so both happen here."""
    train(Mlp)
    torch.compile(Mlp(), backend="eager")(torch.ones(2, *SHAPES[Mlp]))

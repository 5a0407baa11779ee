"""Small models and a loop for the tests of compute entries."""

from __future__ import annotations

import torch
from torch import nn


class ConvNet(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        first = nn.Conv2d(3, 8, 3, padding=1, bias=False)  # a bias would be noise ahead of a BatchNorm
        self.body = nn.Sequential(first, nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.drop(torch.relu(self.body(x)).mean((2, 3))))


class Viewing(nn.Module):
    """The model takes a view that only channels-first memory allows."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4 * 36, 4)

    def forward(self, x):
        return self.head(self.body(x).view(len(x), -1))


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2))

    def forward(self, x):
        return x + self.inner(x)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 5, batch_first=True)
        self.head = nn.Linear(5, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))


IMAGES, ROWS, SERIES = (8, 3, 8, 8), (8, 16), (8, 6, 3)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(make, shape, steps=8, optimizer=adam, between=lambda step, model, opt: None, device="cpu"):
    """Returns the losses, the model, the optimizer and torch's random state after the run."""
    torch.manual_seed(3)
    model = make().to(device)
    opt = optimizer(model)
    losses = []
    for step in range(steps):
        x = torch.randn(shape(step) if callable(shape) else shape).to(device)
        loss = nn.functional.cross_entropy(model(x), torch.arange(len(x), device=device) % 4)
        opt.zero_grad()
        loss.backward()
        between(step, model, opt)
        opt.step()
        losses.append(loss.item())
    return losses, model, opt, torch.get_rng_state()

"""Datasets, a small training on a loader, and a helper that applies entries in this process as a plan would."""

from __future__ import annotations

import random
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hotlap.control.applied_plan import AppliedPlan
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.records.plan import Choice


@contextmanager
def applied(*choices, asked=False):
    """Applies entries given as NAME or NAME=VALUE, either requested or merely part of a plan."""
    named = [choice.partition("=") for choice in choices]
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    running = AppliedPlan(torch, [Choice(name=n, value=v or None, asked=asked) for n, _, v in named], seams)
    running.begin()
    try:
        yield running
    finally:
        running.close()
        seams.close()


def outcome(running, name=None):
    (found,) = [outcome for outcome in running.outcomes if name in (None, outcome.name)]
    return found.status, found.why


class Rows(Dataset):
    """Each item costs time to fetch, but draws no random number."""

    def __init__(self, length=24):
        generator = torch.Generator().manual_seed(3)
        self.rows = torch.randn(length, 4, generator=generator)
        self.scale = 1.0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index] * self.scale
        for _ in range(60):
            row = row + torch.zeros(4)
        return row, row[:1] + row[1:2]


class Random(Rows):
    """The dataset augments its items; `how` names the source of its random numbers."""

    def __init__(self, how):
        super().__init__()
        self.how, self.own = how, np.random.default_rng(0)

    def __getitem__(self, index):
        row, target = super().__getitem__(index)
        if self.how == "torch":
            return row + torch.rand(()), target
        if self.how == "numpy":
            return row + np.random.rand(), target
        return row + (random.random() if self.how == "python" else self.own.random()), target


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(24.0).reshape(6, 4))


class SplitStream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        rows = torch.arange(24.0).reshape(6, 4)
        return iter(rows if info is None else rows[info.id :: info.num_workers])


def train(loader, epochs=3, between=None):
    """Returns the losses and the random state after them; dropout draws from the same stream as the loader."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for epoch in range(epochs):
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        if between is not None:
            between(loader, epoch)
    return losses, states()


def states():
    kind, keys, *rest = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), (kind, keys.tolist(), *rest)


def shuffled(dataset=None, **options):
    return DataLoader(Rows() if dataset is None else dataset, **{"batch_size": 8, "shuffle": True, **options})

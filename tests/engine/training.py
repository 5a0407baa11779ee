"""A small training, its data, and the comparison of two trainings."""

from __future__ import annotations

import os

import torch
from torch import nn

import hotlap.engine.trainer
from hotlap.engine import RMSE, Recipe, Trainer
from tests.engine.tape import EmulatedRecorder

ROWS = 70
RATE = 2**-6  # the same number as a float32 on the device and as a float of Python


class Rows:
    """A minimal resident source."""

    def __init__(self, *tensors):
        self.tensors, self.rows, self.device = tensors, len(tensors[0]), tensors[0].device

    def gather(self, index):
        return tuple(tensor.index_select(0, index) for tensor in self.tensors)


class Stream:
    """A minimal streamed source; `altered(number, batch)` may change a batch on its way."""

    def __init__(self, *tensors, altered=lambda number, batch: batch):
        self.tensors, self.rows, self.altered = tensors, len(tensors[0]), altered

    def batches(self, order, batch_size, device, drop_last):
        for number, index in enumerate(order.split(batch_size)):
            if len(index) == batch_size or not drop_last:
                yield self.altered(number, tuple(tensor[index].to(device) for tensor in self.tensors))


def numbers(rows=ROWS, seed=0, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 6, generator=generator)
    return inputs.to(device), (inputs.sum(1, keepdim=True) + inputs[:, :1] ** 2).to(device)


class Net(nn.Module):
    """A model with what a graph could get wrong: statistics in buffers, and random numbers."""

    def __init__(self, dropout=0.2):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(12, 1)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def trainer(model=None, loss=nn.functional.mse_loss, optimizer=None, rate=RATE, device="cpu", **options):
    """Make a trainer; `options` holds fields of the recipe and keyword arguments of Trainer."""
    torch.manual_seed(3)
    model = (model or Net)() if not isinstance(model, nn.Module) else model
    optimizer = (optimizer or torch.optim.Adam)(model.parameters(), lr=rate)
    names = {
        "inputs",
        "step",
        "metrics",
        "train_metrics",
        "evaluate",
        "callbacks",
        "sinks",
        "say",
        "progress",
        "distributed",
    }
    own = {name: options.pop(name) for name in names & set(options)}
    own.setdefault("say", lambda line: None)
    own.setdefault("progress", None)
    own.setdefault("metrics", {"rmse": RMSE()})
    recipe = Recipe(**{"batch_size": 16, "onednn": "on", "compile": "off", **options})
    return Trainer(model, loss, optimizer, recipe, device=device, **own)


def fitted(epochs=3, train=None, valid=None, resume=False, recorder=None, monkeypatch=None, **options):
    made = trainer(**options)
    if recorder is not None:
        monkeypatch.setattr(hotlap.engine.trainer, "recorder_for", lambda device: recorder)
    source = train if train is not None else Rows(*numbers())
    history = made.fit(source, valid if valid is not None else Rows(*numbers(seed=1)), epochs, resume)
    return made, history


def outcome(made, history):
    """Everything that two trainings must have in common bit for bit."""
    optimizer = made.optimizer.state_dict()["state"]
    moments = [value for state in optimizer.values() for value in state.values() if isinstance(value, torch.Tensor)]
    scores = [
        (record.loss, record.scores, record.losses, record.train_scores, record.steps) for record in history.epochs
    ]
    return [*made.model.state_dict().values(), *moments], scores


def same(first, second):
    tensors, scores = first
    others, other_scores = second
    assert scores == other_scores
    assert len(tensors) == len(others)
    assert all(torch.equal(a, b) for a, b in zip(tensors, others, strict=True))


def captured(monkeypatch, **options):
    """Train with a step that is a graph, as far as the CPU can tell."""
    recorder = EmulatedRecorder()
    found = fitted(recorder=recorder, monkeypatch=monkeypatch, graph="on", **options)
    assert recorder.replays > 0
    return found


class Cut(Exception):
    """Stands for the death of the process."""


def cut_at(step, how=None):
    """A callback that ends the training at this step, by an error or a signal."""

    def callback(record):
        if getattr(record, "step", None) == step:
            if how is None:
                raise Cut
            os.kill(os.getpid(), how)

    return callback

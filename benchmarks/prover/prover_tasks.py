"""The workloads' learnable tasks as small training loops in one process, for planting changes into them.

Data, model, loss, optimizer and rate are the workload's own at `tiny`; what the loop adds (dropout, accumulation, where
a planted change needs them) is named in the task. Every batch is taken from memory, so a step costs milliseconds.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
Batch = tuple[Tensor, ...]  # what the model takes, then the targets


@dataclass(frozen=True)
class Task:
    """One workload, ready to train."""

    name: str
    build_model: Callable[[], nn.Module]
    build_optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    loss: Callable[[Any, Tensor], Tensor]
    gather: Callable[[Tensor], Batch]
    samples: int
    batch: int
    rate: float
    clip: float | None = None
    micro: int = 1  # batches that make one step
    added: str = ""  # what the workload does not have by itself


@contextlib.contextmanager
def _plain_imports(folder: Path) -> Iterator[None]:
    """A workload's scripts import each other by plain names, which every workload uses anew."""
    path, before = list(sys.path), set(sys.modules)
    names = {file.stem for file in (*folder.glob("*.py"), *WORKLOADS.glob("*.py"))}
    hidden = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path[:0] = [str(folder), str(WORKLOADS)]
    try:
        yield
    finally:
        for name in names & (set(sys.modules) - before | names):
            sys.modules.pop(name, None)
        sys.modules.update(hidden)
        sys.path[:] = path


@cache
def _workload(name: str) -> tuple[ModuleType, Any, Any]:
    """Return a workload's naive script, its settings and its training data."""
    with _plain_imports(WORKLOADS / name):
        naive, data = importlib.import_module("naive"), importlib.import_module("data")
    settings = naive.defaults("tiny")
    train, _ = naive.build_datasets(data.ensure("tiny", seed=0), settings)
    return naive, settings, train


def _stacked(train: Any) -> tuple[Tensor, Tensor]:
    rows = [train[row] for row in range(len(train))]
    return torch.stack([row[0] for row in rows]), torch.stack([torch.as_tensor(row[1]) for row in rows])


def _task(name: str, gather: Callable[[Tensor], Batch], **more: Any) -> Task:
    naive, settings, train = _workload(name)
    return Task(
        name=name,
        build_model=lambda: naive.build_model(settings),
        build_optimizer=lambda model: naive.build_optimizer(model, settings),
        loss=naive.loss_function,
        gather=gather,
        samples=len(train),
        batch=settings.batch_size,
        rate=getattr(settings, "full_learning_rate", settings.learning_rate),
        clip=getattr(settings, "clip", None),
        **more,
    )


@cache
def battery_fnn() -> Task:
    features, targets = _workload("battery_fnn")[2].tensors
    return _task("battery_fnn", lambda rows: (features[rows], targets[rows]))


@cache
def bloom() -> Task:
    bits, labels = _stacked(_workload("bloom")[2])
    return _task("bloom", lambda rows: (bits[rows], labels[rows]))


@cache
def leak() -> Task:
    naive, settings, train = _workload("leak")
    mel, labels = _stacked(train)
    task = _task("leak", lambda rows: (mel[rows].unsqueeze(1), labels[rows]))
    return replace(task, build_model=lambda: _seeded(naive, settings))


@cache
def banknotes() -> Task:
    naive, settings, train = _workload("banknotes")
    pictures = [train[row] for row in range(len(train))]
    task = _task("banknotes", lambda rows: naive.collate_ragged([pictures[row] for row in rows.tolist()]))
    return replace(task, build_model=lambda: _seeded(naive, settings))


def _seeded(naive: ModuleType, settings: Any) -> nn.Module:
    """These two set their own seed in build_model; a shifted seed shifts it too."""
    return naive.build_model(replace(settings, seed=torch.initial_seed()))


def with_dropout(task: Task, share: float = 0.2) -> Task:
    """Dropout behind the last hidden layer; none of the workloads has any."""

    def build() -> nn.Module:
        model = task.build_model()
        model.hidden.register_forward_hook(_Dropping(share).hook)
        return model

    return replace(task, build_model=build, added=f"dropout {share} behind the hidden layer")


class _Dropping:
    def __init__(self, share: float) -> None:
        self.share = share

    def hook(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return nn.functional.dropout(output, self.share, module.training)


def with_accumulation(task: Task, micro: int = 4) -> Task:
    """Make a step of several batches; the last step of an epoch has fewer."""
    return replace(task, micro=micro, added=f"gradients of {micro} batches accumulated")


def with_weight_decay(task: Task, share: float) -> Task:
    def build(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=task.rate, weight_decay=share)

    return replace(task, build_optimizer=build, added=f"AdamW with weight decay {share}")

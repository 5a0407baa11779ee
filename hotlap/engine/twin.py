"""A trainer of copies, to try on what the training itself must not notice."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from hotlap.engine.callbacks import AnyCallback
from hotlap.engine.processes import Processes
from hotlap.engine.recipe import Recipe
from hotlap.engine.records import History
from hotlap.engine.update import Forward


class AnyTrainer(Protocol):
    """What is needed of a trainer to measure a copy of it."""

    model: nn.Module
    loss: Callable[..., Any] | None
    step: Any
    optimizer: Optimizer
    recipe: Recipe
    inputs: int
    device: torch.device
    processes: Processes | None
    forward: Forward
    say: Callable[[str], None]

    def fit(self, train: Any, valid: Any = None, epochs: int | None = None) -> History: ...

    def precisely(self) -> AbstractContextManager[None]: ...

    def _move(self) -> None: ...


def twin_of(trainer: AnyTrainer, recipe: Recipe, callbacks: Sequence[AnyCallback] = ()) -> AnyTrainer:
    """Return a trainer of copies of model, optimizer and loss, which says nothing."""
    model, optimizer, loss, step = copy.deepcopy((trainer.model, trainer.optimizer, trainer.loss, trainer.step))
    options: dict[str, Any] = {"inputs": trainer.inputs, "step": step, "device": trainer.device, "progress": None}
    kind: Any = type(trainer)
    made: AnyTrainer = kind(model, loss, optimizer, recipe, say=lambda line: None, callbacks=callbacks, **options)
    return made

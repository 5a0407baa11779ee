"""A trainer of copies, to try on what the training itself must not notice."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hotlap.engine.callbacks import AnyCallback
from hotlap.engine.recipe import Recipe

if TYPE_CHECKING:
    from hotlap.engine.trainer import Trainer


def twin_of(trainer: Trainer, recipe: Recipe, callbacks: Sequence[AnyCallback] = ()) -> Trainer:
    """Return a trainer of copies of model, optimizer and loss, which says nothing."""
    model, optimizer, loss, step = copy.deepcopy((trainer.model, trainer.optimizer, trainer.loss, trainer.step))
    options: dict[str, Any] = {"inputs": trainer.inputs, "step": step, "device": trainer.device, "progress": None}
    return type(trainer)(model, loss, optimizer, recipe, say=lambda line: None, callbacks=callbacks, **options)

"""What a trainer refuses before the first step, with an error that says what to give instead."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hotlap.engine.arguments import require_epochs
from hotlap.engine.data.iterables import IterableStream
from hotlap.engine.errors import BadRecipe, DataElsewhere, EmptySplit
from hotlap.engine.metrics import Metric
from hotlap.engine.recipe import Phase, Recipe
from hotlap.engine.recurrent import carrying
from hotlap.engine.seam import AnySource
from hotlap.engine.several import name_of


def require_metrics(metrics: Mapping[str, Metric], train_metrics: Mapping[str, Metric]) -> None:
    if "loss" in (*metrics, *train_metrics):
        raise BadRecipe('a metric is named "loss", like the training loss; use another name, such as "valid_loss"')
    in_steps = list(train_metrics.values())
    shared = [name for name, metric in metrics.items() if any(metric is counted for counted in in_steps)]
    if shared:
        raise BadRecipe(f"metrics and train_metrics share {shared[0]!r}; create a metric of its own for each of them")


def is_float32(model: nn.Module) -> bool:
    """Return whether all weights that are real numbers are float32, so that the model takes no float64."""
    return all(weight.dtype is torch.float32 for weight in model.parameters() if weight.is_floating_point())


def is_sparse(model: nn.Module) -> bool:
    """Return whether embeddings have sparse gradients, which work with neither fused optimizers nor graphs."""
    return any(getattr(module, "sparse", False) is True for module in model.modules())


def phases_for(recipe: Recipe, epochs: int | None) -> tuple[Phase, ...]:
    require_epochs(epochs)
    phases = recipe.phases or ((Phase(epochs),) if epochs is not None else ())
    if not phases:
        raise BadRecipe("say how long to train: fit(…, epochs=10), or give phases in the recipe")
    if epochs is not None and sum(phase.epochs for phase in phases) != epochs:
        total = sum(phase.epochs for phase in phases)
        raise BadRecipe(f"epochs={epochs}, but the phases of the recipe add up to {total}; leave epochs out")
    return phases


def require_in_place(split: AnySource, name: str, device: torch.device) -> None:
    if split.rows == 0:
        raise EmptySplit(f"the {name} split is empty: it has no rows")
    where = torch.device(getattr(split, "device", device))
    if hasattr(split, "gather") and where not in (device, torch.device(device.type)):
        raise DataElsewhere(
            f"the {name} data is on {where}, but the model trains on {device}; make it resident there "
            "(hotlap.engine.data.resident(…, device=…)) or stream it"
        )


def require_known(optimizer: Optimizer, model: nn.Module, loss: nn.Module | None) -> None:
    """Refuse tensors of neither model nor loss: trial steps would train them too, and no checkpoint would hold them."""
    known = {id(parameter) for module in (model, loss) if module is not None for parameter in module.parameters()}
    owned = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    strange = [tensor for tensor in owned if id(tensor) not in known]
    if strange:
        shape = tuple(strange[0].shape)
        raise BadRecipe(
            f"{len(strange)} of the {len(owned)} tensors of the optimizer, the first of shape {shape}, belong neither "
            "to the model nor to the loss; give it model.parameters(), and make anything else that is trained part of "
            "the model"
        )


def require_repeatable(train: AnySource, model: nn.Module) -> None:
    if isinstance(train, IterableStream) or not getattr(train, "is_fixed", True) or any(carrying(model)):
        raise BadRecipe(
            "steps_per_epoch joins passes over rows that can be chosen freely, but these come in an order of their "
            "own; leave it out, and say how many rows an epoch has: Loader(data, rows=…), or the sampler's num_samples"
        )


def require_shareable(train: AnySource, model: nn.Module, recipe: Recipe, shards: bool, by_loss: bool) -> None:
    why = None
    if any(carrying(model)):
        why = "its model carries a state from batch to batch"
    elif is_sparse(model):
        why = "its embeddings have sparse gradients"
    elif recipe.graph == "on":
        why = 'graph="on", and a step of several processes is not captured'
    elif shards and recipe.compile not in ("auto", "off"):
        why = f'compile="{recipe.compile}", and a step over weights that are shared out is not compiled'
    elif shards and by_loss:
        why = "it has optimizers of several losses, and weights that are shared out are put together for one"
    elif shards and recipe.channels_last:
        why = "weights laid out by channels_last cannot be shared out"
    if why is not None:
        raise BadRecipe(f"this training cannot be shared by several processes: {why}")


def facts_of(
    recipe: Recipe, model: nn.Module, optimizer: Optimizer, epochs: int, train: AnySource, valid: AnySource | None
) -> dict[str, Any]:
    """Return what must be alike in all processes that train together, or they would wait for each other for ever."""
    plain = (bool, int, float, str, type(None))
    facts: dict[str, Any] = {
        "rows to train on": train.rows,
        "rows to evaluate on": None if valid is None else valid.rows,
    }
    facts |= {"epochs": epochs, "optimizer": name_of(optimizer)}
    facts |= {"steps": recipe.checkpoints.steps} if recipe.checkpoints is not None else {}
    facts |= {name: value for name, value in vars(recipe).items() if isinstance(value, plain)}
    weights = [(name, tuple(weight.shape), weight.requires_grad) for name, weight in model.named_parameters()]
    return facts | {"weights": zlib.crc32(repr(weights).encode())}

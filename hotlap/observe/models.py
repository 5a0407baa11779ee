"""Describes models and optimizers for the report."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hotlap.observe.frames import place_of_function
from hotlap.patch.roots import children_of, is_compiled
from hotlap.records.observation import Model, Optimizer


def describe(module: Any) -> Model:
    parameters = list(module.parameters())
    inner = module
    while len(children_of(inner)) == 1 and type(inner).__name__ in (
        "OptimizedModule",
        "DistributedDataParallel",
    ):
        inner = children_of(inner)[0]
    leaves = Counter(type(child).__name__ for child in module.modules() if not children_of(child))
    dtypes: Counter[str] = Counter()
    for parameter in parameters:
        dtypes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return Model(
        name=type(inner).__name__,
        place=place_of_function(getattr(type(inner), "forward", None)),
        parameters=sum(parameter.numel() for parameter in parameters),
        trainable=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        tensors=len(parameters),
        layers=dict(leaves.most_common()),
        dtypes=dict(dtypes),
        memory_format=_memory_format(parameters),
        device=str(parameters[0].device) if parameters else "cpu",
        compiled=any(is_compiled(child) for child in module.modules()),
    )


class SequenceFirst:
    """Whether the first dimension of a module's input may be the length of a text, and not the batch."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}  # by id, since it is asked in every step

    def __call__(self, module: Any) -> bool:
        if id(module) not in self._known:
            children = module.modules()
            orders = [child.batch_first for child in children if type(child.__dict__.get("batch_first")) is bool]
            self._known[id(module)] = bool(orders) and not any(orders)
        return self._known[id(module)]


def _memory_format(parameters: list[Any]) -> str:
    weights = [weight for weight in parameters if weight.dim() == 4 and min(weight.shape[1], max(weight.shape[2:])) > 1]
    if not weights:
        return "none"
    last = all(weight.stride(1) == 1 and weight.stride(3) != 1 for weight in weights)
    return "channels_last" if last else "contiguous"


def describe_optimizer(optimizer: Any) -> Optimizer:
    groups = optimizer.param_groups
    foreach = [group.get("foreach") for group in groups]
    return Optimizer(
        name=type(optimizer).__name__,
        place=place_of_function(type(optimizer).step),
        groups=len(groups),
        tensors=sum(len(group["params"]) for group in groups),
        fused=all(bool(group.get("fused")) for group in groups),
        foreach=None if None in foreach else all(foreach),
    )

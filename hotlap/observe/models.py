"""The root training module: the outermost module *called* that owns the optimizer's parameters.

Found without hooks: one walk over the garbage collector's objects (tens of milliseconds, once, while warming up), then
the class of each outermost owner is watched. An owner that is never called (a LightningModule whose training_step is)
gives way to its children.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable
from typing import Any

from hotlap.model.observation import Model, Optimizer
from hotlap.observe.frames import place_of_function
from hotlap.patch.seams import Seams

DEEPEST = 6


class Roots:
    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._module = seams.torch.nn.Module
        self._watched: dict[int, Any] = {}
        self._called: set[int] = set()
        self._owned: set[int] = set()
        self._depth = 0
        self.tops: list[Any] = []
        self.settled = False

    def search(self, parameters: Iterable[Any]) -> None:
        """Watch the outermost owners of these parameters."""
        self._owned = {id(parameter) for parameter in parameters}
        modules = [one for one in gc.get_objects() if issubclass(type(one), self._module)]
        inner = {id(child) for module in modules for child in _children(module)}
        self.tops = [one for one in modules if id(one) not in inner and self._owns(one)]
        for top in self.tops:
            self._watch(top)

    def called(self, module: Any) -> None:
        self._called.add(id(module))

    def settle(self) -> None:
        """After a step: keep the owners that were called, go one level down from those that were not."""
        if self.settled:
            return
        uncalled = [one for key, one in self._watched.items() if key not in self._called]
        for module in uncalled:
            self._replace(module)
        self._depth += 1
        self.settled = not uncalled or self._depth >= DEEPEST

    def _replace(self, module: Any) -> None:
        owners = [child for child in _children(module) if self._owns(child)]
        if not owners or is_compiled(module):
            return
        del self._watched[id(module)]
        self._seams.unwatch_calls_of(module)
        for child in owners:
            self._watch(child)

    def _watch(self, module: Any) -> None:
        self._seams.watch_calls_of(module)
        self._watched[id(module)] = module

    def _owns(self, module: Any) -> bool:
        return any(id(parameter) in self._owned for parameter in module.parameters())

    def forget(self) -> None:
        self.tops.clear()
        self._watched.clear()

    @property
    def seen(self) -> bool:
        return bool(self._called)

    def records(self) -> tuple[Model, ...]:
        return tuple(describe(top) for top in self.tops)


def _children(module: Any) -> list[Any]:
    children = module.__dict__.get("_modules") or {}
    return [child for child in children.values() if child is not None]


def is_compiled(module: Any) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def describe(module: Any) -> Model:
    parameters = list(module.parameters())
    inner = module
    while len(_children(inner)) == 1 and type(inner).__name__ in (
        "OptimizedModule",
        "DistributedDataParallel",
    ):
        inner = _children(inner)[0]
    leaves = Counter(type(one).__name__ for one in module.modules() if not _children(one))
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
        compiled=any(is_compiled(one) for one in module.modules()),
    )


def _memory_format(parameters: list[Any]) -> str:
    weights = [one for one in parameters if one.dim() == 4 and min(one.shape[1], max(one.shape[2:])) > 1]
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

"""Metrics of the package torchmetrics as metrics of the engine, without importing it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hotlap.engine.errors import BadRecipe
from hotlap.engine.metrics import Metric, Picked, outputs_and_target

AnyMetric = Any  # a Metric, or a metric of torchmetrics


class TorchMetric(Metric):
    """A metric of torchmetrics, which is updated on the device with what `of` picks.

    torchmetrics binds its states to new tensors, but a captured step only writes to the memory it knows: with
    `in_steps` the states are read from `totals` before each update and written back after it.
    """

    def __init__(self, metric: Any, of: Picked = outputs_and_target, *, in_steps: bool = False) -> None:
        if not is_torch_metric(metric):
            raise BadRecipe(f"TorchMetric takes a metric of torchmetrics, not {type(metric).__name__}")
        self.metric, self.of, self.in_steps = metric, of, in_steps
        self.higher_is_better = metric.higher_is_better
        self.states: tuple[str, ...] = tuple(metric._defaults)
        if in_steps:
            self._require_sums()
            metric.validate_args = False  # it reads values on the host
            metric.compute_with_cache = False  # which a replay does not clear
            self.alone()  # the totals of all processes are added up before
        super().__init__(sum(getattr(metric, name).numel() for name in self.states) if in_steps else 0)
        self.reset()

    def _require_sums(self) -> None:
        lists = [name for name in self.states if not isinstance(getattr(self.metric, name), Tensor)]
        if lists:
            raise BadRecipe(
                f"{type(self.metric).__name__} keeps every batch ({', '.join(lists)}), which train_metrics cannot: "
                "use it in metrics=, or give it thresholds if it takes them"
            )
        if any(getattr(reduce, "__name__", "") != "dim_zero_sum" for reduce in self.metric._reductions.values()):
            raise BadRecipe(
                f"{type(self.metric).__name__} keeps more than sums, which train_metrics cannot; use it in metrics="
            )

    def alone(self) -> None:
        self.metric.sync_on_compute = False

    def to(self, device: torch.device) -> None:
        super().to(device)
        self.metric.to(device)

    def reset(self) -> None:
        self.metric.reset()
        if self.in_steps:
            self._save()

    def update(self, outputs: Any, *targets: Tensor) -> None:
        picked = self.of(outputs, *targets)
        if not self.in_steps:
            self.metric.update(*picked)
            return
        self._load()
        self.metric.update(*picked)
        self._save()

    def compute(self) -> Tensor:
        if self.in_steps:
            self._load()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # replays update the states without a call that torchmetrics would count
            value = self.metric.compute()
        if not isinstance(value, Tensor) or value.numel() != 1:
            what = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise BadRecipe(
                f"{type(self.metric).__name__} returned {what}, but a score is one number; "
                "use average='macro' or another that returns one"
            )
        return value

    def _load(self) -> None:
        first = 0
        for name in self.states:
            state = getattr(self.metric, name)
            part = self.totals[first : first + state.numel()]
            setattr(self.metric, name, part.view(state.shape).to(state.dtype))
            first += state.numel()

    def _save(self) -> None:
        states = [getattr(self.metric, name).detach().reshape(-1).to(self.totals) for name in self.states]
        self.totals.copy_(torch.cat(states))


def is_torch_metric(value: object) -> bool:
    package: Any = sys.modules.get("torchmetrics")
    return package is not None and isinstance(value, package.Metric)


def own_metrics(given: Mapping[str, AnyMetric], in_steps: bool = False) -> dict[str, Metric]:
    """Return metrics of the engine by name; raise for whatever is not a metric."""
    return {name: _own_metric(name, metric, in_steps) for name, metric in given.items()}


def _own_metric(name: str, metric: AnyMetric, in_steps: bool) -> Metric:
    if isinstance(metric, TorchMetric):
        return TorchMetric(metric.metric, metric.of, in_steps=in_steps)
    if isinstance(metric, Metric):
        return metric
    if is_torch_metric(metric):
        return TorchMetric(metric, in_steps=in_steps)
    kind, package = type(metric).__name__, type(metric).__module__.partition(".")[0]
    if package == "torchmetrics":
        raise BadRecipe(f"{name!r} is a {kind}; give its metrics by name: metrics={{**collection}}")
    use = f"Mean({name})" if callable(metric) else "one of hotlap.engine, such as RMSE()"
    raise BadRecipe(f"{name!r} is a {kind}, not a metric; use {use}, or a metric of torchmetrics")

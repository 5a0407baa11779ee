"""Evaluation in large batches, without autograd; the scores are read once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import cast

import torch
from torch import nn

from hotlap.engine.data.errors import DataMismatch
from hotlap.engine.data.sources import with_requested_rows
from hotlap.engine.errors import EmptySplit
from hotlap.engine.metrics import Metric, read
from hotlap.engine.seam import AnySource, Batch, Resident
from hotlap.engine.update import Forward


class Evaluation:
    """Evaluates a source; when memory runs out it halves its batches and says so."""

    def __init__(self, forward: Forward, metrics: Mapping[str, Metric], batch: int, say: Callable[[str], None]) -> None:
        self.forward, self.metrics, self.batch, self.say = forward, metrics, batch, say

    def __call__(self, source: AnySource, device: torch.device) -> dict[str, float]:
        if source.rows == 0:
            raise EmptySplit("the validation split is empty: there is no row to evaluate on")
        while True:
            try:
                return self._scores(source, device)
            except torch.OutOfMemoryError:
                if self.batch == 1:
                    raise
                self.batch = max(1, self.batch // 2)
                self.say(f"evaluation does not fit in memory: using batches of {self.batch} from now on")

    @torch.inference_mode()
    def _scores(self, source: AnySource, device: torch.device) -> dict[str, float]:
        with evaluating(self.forward.model):
            for metric in self.metrics.values():
                metric.reset()
            for number, batch in enumerate(batches_of(source, self.batch, device)):
                outputs = self.forward.outputs(batch)
                for metric in self.metrics.values():
                    metric.rows = min(self.batch, source.rows - number * self.batch)
                    metric.update(outputs, *batch[self.forward.inputs :])
        return read(self.metrics)  # host sync: one per evaluation


class EvaluationByStep:
    """Evaluates a source by the loss of a step of the user's own, which keeps the model's outputs to itself."""

    names = ("valid_loss",)

    def __init__(self, forward: Forward, source: AnySource, batch: int, device: torch.device) -> None:
        self.forward, self.source, self.batch, self.device = forward, source, batch, device

    def __call__(self, model: nn.Module) -> dict[str, float]:
        total, rows = torch.zeros((), device=self.device), 0
        for batch in batches_of(self.source, self.batch, self.device):
            total += self.forward(batch)[0]["loss"] * len(batch[0])
            rows += len(batch[0])
        return {"valid_loss": float(total / rows)}  # host sync: one per evaluation


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode, then return every module to its own: one kept in evaluation mode stays so."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def batches_of(source: AnySource, size: int, device: torch.device) -> Iterator[Batch]:
    """Yield every row of the source in order; raise if some are missing, since their score would be another."""
    batches = 0
    for batch in with_requested_rows(_given(source, size, device), source.rows, size):
        batches += 1
        yield batch
    if batches * size < source.rows:
        raise DataMismatch(
            f"the data ended early: {batches} batches of {size} came, but its source reports {source.rows} rows"
        )


def _given(source: AnySource, size: int, device: torch.device) -> Iterable[Batch]:
    if not hasattr(source, "gather"):
        return source.batches(torch.arange(source.rows), size, device, False)
    resident = cast(Resident, source)
    order = torch.arange(resident.rows, device=device)
    return (resident.gather(order[first : first + size]) for first in range(0, resident.rows, size))

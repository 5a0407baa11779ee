"""Metrics that live on the device: updated there batch by batch, also inside a CUDA graph, and read once.

`of(outputs, *targets)` picks what a metric compares from the model's outputs and the rest of the batch; without it
these are the outputs and the first target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from hotlap.engine.errors import BadRecipe
from hotlap.engine.processes import Processes

Picked = Callable[..., tuple[Tensor, Tensor]]


def outputs_and_target(outputs: Any, *targets: Tensor) -> tuple[Tensor, Tensor]:
    return outputs, targets[0]


def of_one_shape(metric: Metric, predicted: Tensor, actual: Tensor) -> None:
    """Compare shapes alone, so that nothing is read from the device. [n, 1] against [n] would broadcast to [n, n]."""
    if predicted.shape != actual.shape:
        raise BadRecipe(
            f"{type(metric).__name__} compares shape {list(predicted.shape)} with {list(actual.shape)}; "
            "give of=, a function that returns two tensors of one shape, such as "
            f"{type(metric).__name__}(of=lambda outputs, target: (outputs.squeeze(1), target))"
        )


class Metric:
    """Keeps its sums in `totals`, which is only changed in place: a graph holds its address."""

    higher_is_better: bool | None = None  # None: not known
    rows: int | None = None  # of the batch, set before each update

    def __init__(self, size: int) -> None:
        self.totals = torch.zeros(size, dtype=torch.float64)

    def to(self, device: torch.device) -> None:
        self.totals = self.totals.to(device)

    def reset(self) -> None:
        self.totals.zero_()

    def update(self, outputs: Any, *targets: Tensor) -> None:
        raise NotImplementedError

    def compute(self) -> Tensor:
        """Return the value so far, a scalar on the device."""
        raise NotImplementedError

    def alone(self) -> None:
        """Compute from the rows of this process from now on, without asking others for theirs."""

    def explain(self) -> None:
        """Raise if it is the user's mistake that the value is not a number; called only then. Host sync."""


def widened(values: Tensor) -> Tensor:
    """Return half precision as float32: it has no room for sums."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


class Mean(Metric):
    """The mean over rows of `of(outputs, *targets)`: one value per row, or one for the batch, weighted by its rows.

    It cannot know whether more is better: `higher_is_better` says so where a best epoch is looked for.
    """

    def __init__(self, of: Callable[..., Tensor], higher_is_better: bool | None = None) -> None:
        super().__init__(2)
        self.of, self.higher_is_better = of, higher_is_better

    def update(self, outputs: Any, *targets: Tensor) -> None:
        values = widened(self.of(outputs, *targets).detach())
        rows = len(targets[0]) if targets else self._rows_of(values)
        self._require_one_a_row(values, rows)
        self.totals[0].add_(values.reshape(()) * rows if values.numel() == 1 else values.sum())
        self.totals[1].add_(rows)

    def _rows_of(self, values: Tensor) -> int:
        return len(values) if values.numel() != 1 else self.rows or 1

    def _require_one_a_row(self, values: Tensor, rows: int) -> None:
        if values.numel() not in (1, rows):
            raise BadRecipe(
                f"Mean got values of shape {list(values.shape)} for {rows} rows; of= must return one per row, such as "
                "(outputs - target).abs().flatten(1).mean(1), or one for the batch"
            )

    def compute(self) -> Tensor:
        return self.totals[0] / self.totals[1]


class _ErrorMean(Metric):
    """Sums what `_errors` makes of all differences between outputs and target."""

    higher_is_better = False

    def __init__(self, of: Picked = outputs_and_target) -> None:
        super().__init__(2)
        self.of = of

    def update(self, outputs: Any, *targets: Tensor) -> None:
        predicted, actual = self.of(outputs, *targets)
        of_one_shape(self, predicted, actual)
        self.totals[0].add_(self._errors(difference(widened(predicted.detach()), widened(actual))).sum())
        self.totals[1].add_(actual.numel())

    def _errors(self, differences: Tensor) -> Tensor:
        raise NotImplementedError

    def compute(self) -> Tensor:
        return self.totals[0] / self.totals[1]


class RMSE(_ErrorMean):
    """The root of the mean square error over all elements; true is 1 and false is 0."""

    def _errors(self, differences: Tensor) -> Tensor:
        return differences.square()

    def compute(self) -> Tensor:
        return super().compute().sqrt()


class MAE(_ErrorMean):
    """The mean absolute error over all elements; true is 1 and false is 0."""

    def _errors(self, differences: Tensor) -> Tensor:
        return differences.abs()


class Accuracy(Metric):
    """The share of elements predicted right. Outputs have one score per class in their second dimension, as for
    cross_entropy, or the shape of the target and a `threshold`: 0 for logits, 0.5 for probabilities.
    """

    higher_is_better = True

    def __init__(self, threshold: float | None = None, of: Picked = outputs_and_target) -> None:
        super().__init__(2)
        self.threshold, self.of = threshold, of

    def update(self, outputs: Any, *targets: Tensor) -> None:
        predicted, actual = self.of(outputs, *targets)
        found = self._found(predicted.detach(), actual)
        self.totals[0].add_((found == actual).sum())
        self.totals[1].add_(actual.numel())

    def _found(self, predicted: Tensor, actual: Tensor) -> Tensor:
        if self.threshold is not None:
            of_one_shape(self, predicted, actual)
            return predicted > self.threshold
        if predicted.dim() == actual.dim() + 1 and predicted.shape[:1] + predicted.shape[2:] == actual.shape:
            return predicted.argmax(1)
        of_one_shape(self, predicted, actual)
        if predicted.is_floating_point():
            raise BadRecipe(
                f"Accuracy got outputs and target of one shape, {list(actual.shape)}, so there is no score per class; "
                "say from where on an output means true: Accuracy(threshold=0.0) for logits, 0.5 for probabilities"
            )
        return predicted

    def compute(self) -> Tensor:
        return self.totals[0] / self.totals[1]


class BinaryF1(Metric):
    """F1 of `predicted >= threshold` against the truth; 0 if nothing was predicted and nothing was true."""

    higher_is_better = True

    def __init__(self, threshold: float = 0.5, of: Picked = outputs_and_target) -> None:
        super().__init__(3)
        self.threshold, self.of = threshold, of

    def update(self, outputs: Any, *targets: Tensor) -> None:
        predicted, actual = self.of(outputs, *targets)
        of_one_shape(self, predicted, actual)
        self.totals.add_(confusion(predicted.detach() >= self.threshold, actual.bool()))

    def compute(self) -> Tensor:
        return f1_of(self.totals)


class Dice(Metric):
    """The mean over rows of 2·|both| / (|predicted| + |actual|), predicted being above the threshold; 1 for two empty
    rows."""

    higher_is_better = True

    def __init__(self, threshold: float = 0.5, of: Picked = outputs_and_target) -> None:
        super().__init__(2)
        self.threshold, self.of = threshold, of

    def update(self, outputs: Any, *targets: Tensor) -> None:
        predicted, actual = self.of(outputs, *targets)
        self._require_elements(predicted, actual)
        found, truth = (predicted.detach() > self.threshold).flatten(1), actual.bool().flatten(1)
        of_one_shape(self, found, truth)
        both, either = (found & truth).sum(1), found.sum(1) + truth.sum(1)
        scores = torch.where(either > 0, 2 * both / either.clamp(min=1), 1.0)
        self.totals[0].add_(scores.sum())
        self.totals[1].add_(len(scores))

    def _require_elements(self, *compared: Tensor) -> None:
        for tensor in compared:
            if tensor.dim() < 2:
                raise BadRecipe(
                    f"Dice compares the elements of each row, but got shape {list(tensor.shape)}; give of=, a function "
                    "that returns two tensors of [rows, elements], or use BinaryF1 if a row has one value"
                )

    def compute(self) -> Tensor:
        return self.totals[0] / self.totals[1]


class GroupMeans(Metric):
    """Averages rows that belong together (the segments of a file) group by group, then scores all groups at once.

    `of` returns a value and the number of its group (0 … groups - 1) for each row; batches may split groups and hold
    many of them, at one scatter per batch. `finish(means)` makes one value of the means of all groups; the mean of a
    group without rows is NaN. Rows of any other group are refused when the metric is read, the only time it waits for
    the device.
    """

    def __init__(
        self,
        groups: int,
        of: Picked,
        finish: Callable[[Tensor], Tensor] = torch.nanmean,
        higher_is_better: bool | None = None,
    ) -> None:
        if groups < 1:
            raise BadRecipe(f"GroupMeans of {groups} groups; it needs 1 or more")
        super().__init__(2 * (groups + 2))  # sums, then counts; the first and last of each are of rows of no group
        self.groups, self.of, self.finish, self.higher_is_better = groups, of, finish, higher_is_better

    def update(self, outputs: Any, *targets: Tensor) -> None:
        values, groups = self.of(outputs, *targets)
        of_one_shape(self, values, groups)
        self._require_whole(groups)
        values = values.detach().flatten().to(self.totals.dtype)
        places = groups.flatten().long().clamp(-1, self.groups) + 1
        self.totals.index_add_(0, places, values)
        self.totals.index_add_(0, places + (self.groups + 2), torch.ones_like(values))

    def _require_whole(self, groups: Tensor) -> None:
        if groups.is_floating_point() or groups.is_complex():
            raise BadRecipe(
                f"the groups of GroupMeans are {groups.dtype}; of= must return whole numbers as groups, such as "
                "(values, groups.long())"
            )

    def means(self) -> Tensor:
        """Return the mean of each group; all are NaN if a row belongs to no group."""
        sums, counts = self.totals.view(2, -1)
        return self._if_known(torch.div(sums, counts)[1:-1])

    def compute(self) -> Tensor:
        return self._if_known(self.finish(self.means()))

    def explain(self) -> None:
        below, *_, above = self.totals.view(2, -1)[1].tolist()
        if below or above:
            raise BadRecipe(
                f"GroupMeans has {self.groups} groups, but {below:.0f} rows are in a group below 0 and {above:.0f} "
                f"rows in one above {self.groups - 1}; of= must return numbers from 0, and groups= must count them"
            )

    def _if_known(self, found: Tensor) -> Tensor:
        counts = self.totals.view(2, -1)[1]
        return torch.where(counts[0] + counts[-1] > 0, math.nan, found)


def difference(predicted: Tensor, actual: Tensor) -> Tensor:
    """Subtract in floating point: unsigned integers would wrap around, and booleans cannot be subtracted."""
    kind = torch.result_type(predicted, actual)
    if not kind.is_floating_point:
        kind = torch.promote_types(kind, torch.float64)
    return predicted.to(kind) - actual.to(kind)


def confusion(found: Tensor, truth: Tensor) -> Tensor:
    """Count true positives, false positives and false negatives."""
    return torch.stack([(found & truth).sum(), (found & ~truth).sum(), (~found & truth).sum()])


def f1_of(counts: Tensor) -> Tensor:
    true_positive, false_positive, false_negative = counts.unbind()
    return 2 * true_positive / (2 * true_positive + false_positive + false_negative).clamp(min=1)


def f1(found: Tensor, truth: Tensor) -> Tensor:
    return f1_of(confusion(found, truth))


def majority(votes: Tensor, of: int) -> Tensor:
    """Return whether at least half of every `of` consecutive votes are true: a file's verdict from its segments'."""
    return 2 * votes.view(-1, of).sum(dim=1) >= of


def is_higher_better(wanted: bool | None, name: str, metric: Metric | None) -> bool | None:
    """Follow the recipe, else the metric; a loss is minimised. None: nobody has said."""
    if wanted is not None:
        return wanted
    if metric is not None and metric.higher_is_better is not None:
        return metric.higher_is_better
    return False if name == "loss" or name.endswith("_loss") else None


def read(metrics: Mapping[str, Metric], processes: Processes | None = None) -> dict[str, float]:
    """Read the values of all metrics, of the rows of all processes, with one host sync."""
    if not metrics:
        return {}
    if processes is not None:
        processes.add_up([metric.totals for metric in metrics.values()])
    values = torch.stack([metric.compute().double().reshape(()) for metric in metrics.values()]).tolist()
    for metric, value in zip(metrics.values(), values, strict=True):
        if math.isnan(value):
            metric.explain()
    return dict(zip(metrics, values, strict=True))

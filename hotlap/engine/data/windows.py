"""Windows over series. A window is a view of its series, made when a batch needs it and never stored.

Stored are the rows of all series once, and the row each window starts at: 1/lookback of the memory the windows take.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hotlap.engine.data.errors import DataMismatch, EmptySplit
from hotlap.engine.data.sources import ArrayLike, as_tensor
from hotlap.engine.seam import Batch


class Windows:
    """Every run of `lookback` rows of every series, and the target at its last row, or `horizon` rows later.

    Rows of the source are in the order of the series, then of the start. A gathered window is `[batch, lookback,
    feature]`. On CUDA it is laid out by step, as recurrent layers read it, so that they copy nothing; on a CPU each
    window is one block copy. `dtype` is what windows are cast to after the gather.
    """

    def __init__(
        self,
        series: Sequence[ArrayLike],
        lookback: int,
        targets: Sequence[ArrayLike] | None = None,
        *,
        horizon: int = 0,
        stride: int = 1,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> None:
        if lookback < 1 or stride < 1 or horizon < 0:
            raise DataMismatch(
                f"lookback {lookback} and stride {stride} must be at least 1, horizon {horizon} at least 0"
            )
        require_list(series, "series", 3)
        tensors = [two_dimensional(as_tensor(values), number) for number, values in enumerate(series)]
        lengths = [len(tensor) for tensor in tensors]
        self.lookback, self.stride, self.dtype, self.device = lookback, stride, dtype, torch.device(device)
        starts, owners = starts_of(lengths, lookback, horizon, stride)
        self.rows = len(starts)
        self.values = joined(tensors, "series").to(self.device).contiguous()
        self.starts, self.series = starts.to(self.device), owners.to(self.device)
        self.targets = self._targets(targets, lengths, starts + (lookback - 1 + horizon))
        self.steps = torch.arange(lookback, device=self.device).unsqueeze(1)
        self.placed = ""

    def _targets(self, targets: Sequence[ArrayLike] | None, lengths: list[int], at: Tensor) -> Tensor | None:
        if targets is None:
            return None
        require_list(targets, "targets", 2)
        tensors = [as_tensor(values) for values in targets]
        if [len(tensor) for tensor in tensors] != lengths:
            raise DataMismatch(
                f"targets need a row for every row of their series: {[len(t) for t in tensors]} and {lengths}"
            )
        table = joined([tensor.unsqueeze(1) if tensor.dim() == 1 else tensor for tensor in tensors], "targets")
        return table.index_select(0, at).to(self.device)

    def __len__(self) -> int:
        return self.rows

    def gather(self, index: Tensor) -> Batch:
        windows = self._windows(self.starts.index_select(0, index))
        if self.dtype is not None:
            windows = windows.to(self.dtype)
        return (windows,) if self.targets is None else (windows, self.targets.index_select(0, index))

    def _windows(self, starts: Tensor) -> Tensor:
        if self.device.type != "cpu":
            return self.values[self.steps + starts].transpose(0, 1)
        # Overlapping rows of lookback × features numbers: a view, so each window is one block to copy.
        count, width = len(self.values) - self.lookback + 1, self.values.shape[1]
        overlapping = self.values.as_strided((count, self.lookback * width), (width, 1))
        return overlapping.index_select(0, starts).view(-1, self.lookback, width)


def require_list(values: Sequence[ArrayLike] | ArrayLike, what: str, dims: int) -> None:
    """Refuse a single series, which would be taken for many, of a row or a number each."""
    if isinstance(values, Tensor | np.ndarray) and values.ndim < dims:
        raise DataMismatch(
            f"{what} is one array of shape {tuple(values.shape)}; give a list of arrays, one for each series: "
            f"[{what}] for a single one"
        )


def two_dimensional(values: Tensor, number: int) -> Tensor:
    if values.dim() == 1:
        return values.unsqueeze(1)
    if values.dim() != 2:
        raise DataMismatch(f"series {number} has shape {tuple(values.shape)}; it must be [row, feature]")
    return values


def joined(tensors: Sequence[Tensor], what: str) -> Tensor:
    if len({(tuple(tensor.shape[1:]), tensor.dtype) for tensor in tensors}) > 1:
        kinds = sorted({f"{tuple(tensor.shape[1:])} {tensor.dtype}" for tensor in tensors})
        raise DataMismatch(f"{what} differ in shape or type: {'; '.join(kinds)}")
    return torch.cat(list(tensors))


def starts_of(lengths: Sequence[int], lookback: int, horizon: int, stride: int) -> tuple[Tensor, Tensor]:
    """Return the row of the joined series at which each window starts, and the series it belongs to."""
    starts, owners, first = [], [], 0
    for number, length in enumerate(lengths):
        own = (
            torch.arange(first, first + length - lookback - horizon + 1, stride)
            if length >= lookback + horizon
            else None
        )
        if own is not None:
            starts.append(own)
            owners.append(torch.full((len(own),), number))
        first += length
    if not starts:
        longest = max(lengths, default=0)
        raise EmptySplit(
            f"no series is long enough for a window of {lookback + horizon} rows (the longest has {longest}); "
            "lower lookback"
        )
    return torch.cat(starts), torch.cat(owners)


class CarriedWindows:
    """Windows that follow each other without overlap, in `lanes` lanes, for a state that is carried.

    Row `step × lanes + lane` continues row `(step - 1) × lanes + lane`, so batches of `lanes` rows in order let a
    recurrent layer go on where it stopped. The batch is (window, fresh, target): `fresh` is True where a lane begins
    a new series and its state must be zero. Never shuffle it. `left_out` windows did not fill a last batch.
    """

    def __init__(self, series: Sequence[ArrayLike], lookback: int, targets: Sequence[ArrayLike], lanes: int,
                 *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> None:  # fmt: skip
        if lanes < 1:
            raise DataMismatch(f"lanes={lanes}, but a batch needs at least 1")
        self.windows = Windows(series, lookback, targets, stride=lookback, device=device, dtype=dtype)
        self.device, self.lanes, self.ordered = self.windows.device, lanes, True
        steps = self.windows.rows // lanes
        if steps < 1:
            raise EmptySplit(f"{self.windows.rows} windows do not fill {lanes} lanes; use at most {self.windows.rows}")
        self.rows, self.left_out = steps * lanes, self.windows.rows - steps * lanes
        self.chosen = torch.arange(self.rows, device=self.device).view(lanes, steps).t().reshape(-1)
        owners = self.windows.series[self.chosen].view(steps, lanes)
        fresh = torch.ones(steps, lanes, dtype=torch.bool, device=self.device)
        fresh[1:] = owners[1:] != owners[:-1]
        self.fresh = fresh.view(-1)

    def gather(self, index: Tensor) -> Batch:
        window, *targets = self.windows.gather(self.chosen.index_select(0, index))
        return (window, self.fresh.index_select(0, index), *targets)

"""What the trainer needs of data. The sources of hotlap.engine.data fit, and so does anything else of this form.

A source may have `order(seed, epoch)`, which returns the order of its rows in an epoch, as numbers from 0 to rows - 1,
each at most once; without it, rows are shuffled by the recipe.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

Batch = tuple[Tensor, ...]


class Source(Protocol):
    @property
    def rows(self) -> int: ...


class Resident(Source, Protocol):
    """Data in the memory of `device`. `gather` is device work alone: shapes depend on `len(index)`, nothing waits."""

    @property
    def device(self) -> torch.device: ...

    def gather(self, index: Tensor) -> Batch: ...


class StreamSource(Source, Protocol):
    """Data read while the training runs; its batches are on the device and safe to use on the current stream."""

    def batches(self, order: Tensor, batch_size: int, device: torch.device, drop_last: bool) -> Iterable[Batch]: ...


AnySource = Resident | StreamSource

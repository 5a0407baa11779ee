"""A dataset of ray.data as a source: its blocks are read and transformed by a cluster while the training runs.

It may be larger than the memory of any machine. So its rows cannot be chosen: an epoch is one execution of the dataset,
whose blocks come in the same order each time, and training batches are drawn from a window that moves over them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hotlap.engine.data.errors import DataMismatch
from hotlap.engine.data.iterables import IterableStream
from hotlap.engine.data.sources import require_rows
from hotlap.engine.order import seed_of

WINDOW = 32  # batches that rows are drawn from


def is_ray(data: object) -> bool:
    """Return whether this is a dataset of ray.data, without importing that."""
    return type(data).__module__.startswith("ray.data.") and hasattr(data, "iter_torch_batches")


class RayStream(IterableStream):
    """`rows` of the dataset in each epoch, all of them if None; `columns` alone are read where they are named."""

    def __init__(self, dataset: Any, rows: int | None, columns: Sequence[str] | None, shuffle: bool) -> None:
        known = dataset.columns()
        for name in columns or ():
            if name not in known:
                raise DataMismatch(f"the dataset has no column {name!r}; it has: {', '.join(known)}")
        self.dataset = dataset.select_columns(list(columns)) if columns else dataset
        self.columns, self.shuffle, self.seed = columns, shuffle, 0
        self.rows = require_rows(dataset.count() if rows is None else rows, "the dataset")

    def order(self, seed: int, epoch: int) -> Tensor:
        self.seed = seed_of(seed, epoch) % 2**32
        return torch.arange(self.rows)

    def fetched(self, batch_size: int) -> Generator[Any, None, None]:
        """Yield batches in host memory: the thread that trains copies them, since it may be capturing a graph."""
        drawn = {"local_shuffle_buffer_size": WINDOW * batch_size, "local_shuffle_seed": self.seed}
        with in_order(self.dataset):
            yield from self.dataset.iter_torch_batches(
                batch_size=batch_size, device="cpu", **(drawn if self.shuffle else {})
            )

    @property
    def line(self) -> str:
        return "taken as ray.data yields them" + (f", drawn from {WINDOW} batches at a time" if self.shuffle else "")


@contextlib.contextmanager
def in_order(dataset: Any) -> Iterator[None]:
    """Let blocks come in their order rather than as they are done, so that a resumed epoch has the same batches."""
    options = dataset.context.execution_options
    before, options.preserve_order = options.preserve_order, True
    try:
        yield
    finally:
        options.preserve_order = before

"""Random numbers that the workers of a DataLoader draw: the same for the same batch, also in a resumed run.

torch seeds a worker once, when it starts, so what it draws depends on all it has fetched before, and on how many
workers there are. Here a batch brings a seed of its own along.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, get_worker_info

from hotlap.engine.snapshot import seed_streams


def seed_of_batch(*numbers: int) -> int:
    """Return a seed that shares nothing with those of other numbers, which plain sums of them would."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest(), "big")


class SeededBatches(Dataset[Any]):
    """The user's dataset in a worker, asked for batches as pairs of a seed and the rows."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitems__(self, batch: tuple[int, Sequence[int]]) -> Any:
        seed, rows = batch
        seed_streams(seed)
        theirs = getattr(self.dataset, "__getitems__", None)
        return [self.dataset[row] for row in rows] if theirs is None else theirs(rows)


@dataclass(frozen=True)
class WorkerBegins:
    """Runs the user's `worker_init_fn`, to which `get_worker_info().dataset` is the dataset that was given."""

    theirs: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # torch lets nobody set it, before 2.13 by a method
        if self.theirs is not None:
            self.theirs(worker)

"""How the rows of an epoch fall into windows: the batches of one optimizer step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from hotlap.engine.errors import BadRecipe, BatchTooLarge, EmptySplit
from hotlap.engine.recipe import Recipe


class Sizes(tuple[int, ...]):
    """The rows of each batch of a window in this process; `rows` counts those of all processes."""

    rows: int

    def __new__(cls, sizes: Iterable[int] = (), rows: int | None = None) -> Sizes:
        made = super().__new__(cls, sizes)
        made.rows = sum(made) if rows is None else rows
        return made


@dataclass(frozen=True)
class Geometry:
    """`full` windows of `accumulate` batches each, then one of the remaining batches, the last maybe shorter."""

    batch_size: int
    accumulate: int
    full: int
    tail: Sizes  # of the batches in the last window; empty where everything fits
    processes: int = 1  # that share each batch

    @property
    def window(self) -> Sizes:
        return Sizes((self.batch_size,) * self.accumulate, self.window_rows * self.processes)

    @property
    def window_rows(self) -> int:
        return self.batch_size * self.accumulate

    @property
    def windows(self) -> int:
        """Optimizer steps per epoch."""
        return self.full + bool(self.tail)

    @property
    def rows(self) -> int:
        """Rows trained on in an epoch: all of them, less an incomplete batch that is dropped."""
        return self.full * self.window_rows + sum(self.tail)

    def sizes(self, window: int) -> Sizes:
        return self.window if window < self.full else self.tail


def lay_out(rows: int, recipe: Recipe) -> Geometry:
    batch_size, accumulate = recipe.batch_size, recipe.accumulate
    if rows == 0:
        raise EmptySplit("the training split is empty: there is no row to train on")
    if batch_size > rows:
        raise BatchTooLarge(f"a batch of {batch_size} is larger than the {rows} rows to train on; use at most {rows}")
    if recipe.steps_per_epoch is not None:
        return Geometry(batch_size, accumulate, recipe.steps_per_epoch, Sizes())
    batches, short = divmod(rows, batch_size)
    full, left = divmod(batches, accumulate)
    tail = (batch_size,) * left + ((short,) if short and not recipe.drop_last else ())
    return Geometry(batch_size, accumulate, full, Sizes(tail))


def part_of(geometry: Geometry, rank: int, count: int) -> Geometry:
    """Return what one of several processes does of each batch: rows next to each other."""
    if geometry.batch_size % count:
        raise BadRecipe(
            f"a batch of {geometry.batch_size} rows cannot be shared by {count} processes; "
            f"use a multiple of {count} as batch_size, which counts the rows of all processes"
        )
    size = geometry.batch_size // count
    tail = (_share(rows, rank, count) for rows in geometry.tail)
    sizes = Sizes((rows for rows in tail if rows), geometry.tail.rows)
    return Geometry(size, geometry.accumulate, geometry.full, sizes, count)


def part_of_order(order: Tensor, geometry: Geometry, rank: int, count: int) -> Tensor:
    """Return the rows of an epoch's order that one of several processes trains on."""
    size, rows = geometry.batch_size, geometry.rows
    share, whole = size // count, rows // size * size
    batches = order[:whole].view(-1, size)[:, rank * share : (rank + 1) * share]
    return torch.cat([batches.reshape(-1), torch.tensor_split(order[whole:rows], count)[rank]])


def _share(rows: int, rank: int, count: int) -> int:
    """Return the rows that tensor_split gives a process."""
    return rows // count + (rank < rows % count)

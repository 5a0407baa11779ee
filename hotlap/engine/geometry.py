"""How the rows of an epoch fall into windows: the batches of one optimizer step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hotlap.engine.errors import BadRecipe, BatchTooLarge, EmptySplit
from hotlap.engine.recipe import Recipe


class Sizes(tuple[int, ...]):
    """The rows of each batch of a window in this process; `rows` counts those of all processes.

    With `stands_in`, the last batch counts for nothing: this process has no part in it, but must compute as often as
    the others.
    """

    rows: int
    stands_in: bool

    def __new__(cls, sizes: Iterable[int] = (), rows: int | None = None, stands_in: bool = False) -> Sizes:
        made = super().__new__(cls, sizes)
        made.rows, made.stands_in = sum(made) if rows is None else rows, stands_in
        return made

    @cached_property
    def shares(self) -> list[float]:
        """Return the weight of each batch in the window."""
        shares = [size / self.rows for size in self]
        return [*shares[:-1], 0.0] if self.stands_in else shares


@dataclass(frozen=True)
class Geometry:
    """`full` windows of `accumulate` batches each, then one of the remaining batches, the last maybe shorter."""

    batch_size: int
    accumulate: int
    full: int
    tail: Sizes  # of the batches in the last window; empty where everything fits
    processes: int = 1  # that share each batch

    @cached_property
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


def part_of(geometry: Geometry, rank: int, count: int, equally: bool = False) -> Geometry:
    """Return what one of several processes does of each batch: rows next to each other; `equally` often in all."""
    if geometry.batch_size % count:
        raise BadRecipe(
            f"a batch of {geometry.batch_size} rows cannot be shared by {count} processes; "
            f"use a multiple of {count} as batch_size, which counts the rows of all processes"
        )
    size = geometry.batch_size // count
    tail = [rows for rows in (_share(rows, rank, count) for rows in geometry.tail) if rows]
    stands_in = equally and len(tail) < len(geometry.tail)
    sizes = Sizes([*tail, size] if stands_in else tail, geometry.tail.rows, stands_in)
    return Geometry(size, geometry.accumulate, geometry.full, sizes, count)


def part_of_order(order: Tensor, geometry: Geometry, rank: int, count: int, stands_in: bool = False) -> Tensor:
    """Return the rows of an epoch's order that one of several processes trains on."""
    size, rows = geometry.batch_size, geometry.rows
    share, whole = size // count, rows // size * size
    extra = order[:share] if stands_in else order[:0]
    batches = order[:whole].view(-1, size)[:, rank * share : (rank + 1) * share]
    return torch.cat([batches.reshape(-1), torch.tensor_split(order[whole:rows], count)[rank], extra])


def _share(rows: int, rank: int, count: int) -> int:
    """Return the rows that tensor_split gives a process."""
    return rows // count + (rank < rows % count)

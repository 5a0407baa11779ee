"""Read the losses while the training runs: they are copied to the host in the background and read once they arrive."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hotlap.engine.update import Tally


@dataclass(frozen=True)
class LossRows:
    first: int  # window of the first row
    rows: list[list[float]]


class Looks:
    """`ask` and `poll` never wait for the device; `rest` and `all` do."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.read_to = 0
        self._pending: tuple[int, Tensor, PendingCopy] | None = None

    def begin(self, first: int) -> None:
        self.read_to, self._pending = first, None

    def ask(self, done: int) -> None:
        """Start copying the losses not seen yet of the first `done` windows."""
        if self._pending is not None or done <= self.read_to:
            return
        rows = self.tally.losses[self.read_to : done]
        if rows.device.type != "cuda":
            self._pending = (self.read_to, rows.clone(), CompletedCopy())
        else:
            pinned = torch.empty(rows.shape, pin_memory=True).copy_(rows, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._pending = (self.read_to, pinned, event)
        self.read_to = done

    def poll(self) -> LossRows | None:
        if self._pending is None or not self._pending[2].query():
            return None
        first, rows, _ = self._pending
        self._pending = None
        return LossRows(first, rows.tolist())

    def rest(self, done: int) -> LossRows:
        """HOST SYNC: return the losses not seen yet."""
        first = self._pending[0] if self._pending is not None else self.read_to
        return LossRows(first, self.all(done).rows[first:])

    def all(self, done: int) -> LossRows:
        """HOST SYNC: return every loss of the epoch so far, once all their steps are done."""
        self.read_to, self._pending = done, None
        return LossRows(0, self.tally.losses[:done].tolist())


class PendingCopy(Protocol):
    def query(self) -> bool: ...


class CompletedCopy:
    def query(self) -> bool:
        return True


def first_broken(seen: LossRows) -> tuple[int, float] | None:
    """Return the first window whose loss is not finite, and that loss."""
    for number, row in enumerate(seen.rows):
        if not math.isfinite(row[0]):
            return seen.first + number, row[0]
    return None

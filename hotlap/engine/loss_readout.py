"""Looking at the losses while the training runs: copied to the host in the background, read once they have arrived."""

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
        self._asked: tuple[int, Tensor, PendingCopy] | None = None

    def begin(self, first: int) -> None:
        self.read_to, self._asked = first, None

    def ask(self, done: int) -> None:
        """The losses of the windows not seen yet, up to `done` of them."""
        if self._asked is not None or done <= self.read_to:
            return
        rows = self.tally.losses[self.read_to : done]
        if rows.device.type != "cuda":
            self._asked = (self.read_to, rows.clone(), CompletedCopy())
        else:
            pinned = torch.empty(rows.shape, pin_memory=True).copy_(rows, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._asked = (self.read_to, pinned, event)
        self.read_to = done

    def poll(self) -> LossRows | None:
        if self._asked is None or not self._asked[2].query():
            return None
        first, rows, _ = self._asked
        self._asked = None
        return LossRows(first, rows.tolist())

    def rest(self, done: int) -> LossRows:
        """HOST SYNC: those not seen yet."""
        first = self._asked[0] if self._asked is not None else self.read_to
        return LossRows(first, self.all(done).rows[first:])

    def all(self, done: int) -> LossRows:
        """HOST SYNC: every loss of the epoch up to now, when all the steps behind them are done."""
        self.read_to, self._asked = done, None
        return LossRows(0, self.tally.losses[:done].tolist())


class PendingCopy(Protocol):
    def query(self) -> bool: ...


class CompletedCopy:
    def query(self) -> bool:
        return True


def first_broken(seen: LossRows) -> tuple[int, float] | None:
    """The window whose loss is no number, and the loss."""
    for number, row in enumerate(seen.rows):
        if not math.isfinite(row[0]):
            return seen.first + number, row[0]
    return None

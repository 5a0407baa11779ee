"""How the rows of an epoch fall into windows: the batches of one optimizer step."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.engine.errors import BatchTooLarge, EmptySplit


@dataclass(frozen=True)
class Geometry:
    """`full` windows of `accumulate` batches each, then one of the remaining batches, the last maybe shorter."""

    batch_size: int
    accumulate: int
    full: int
    tail: tuple[int, ...]  # the sizes of the batches in the last window; empty where everything fits

    @property
    def window(self) -> tuple[int, ...]:
        return (self.batch_size,) * self.accumulate

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

    def sizes(self, window: int) -> tuple[int, ...]:
        return self.window if window < self.full else self.tail


def lay_out(rows: int, batch_size: int, accumulate: int, drop_last: bool) -> Geometry:
    if rows == 0:
        raise EmptySplit("the training split is empty: there is no row to train on")
    if batch_size > rows:
        raise BatchTooLarge(f"a batch of {batch_size} is larger than the {rows} rows to train on; use at most {rows}")
    batches, short = divmod(rows, batch_size)
    full, left = divmod(batches, accumulate)
    tail = (batch_size,) * left + ((short,) if short and not drop_last else ())
    return Geometry(batch_size, accumulate, full, tail)

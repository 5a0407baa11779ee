"""The guard of a training: a loss or a weight that is no longer finite ends it, before it is saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from hotlap.engine.checkpoints import Writer
from hotlap.engine.errors import NonFiniteLoss
from hotlap.engine.loss_readout import LossRows, first_broken
from hotlap.engine.processes import Processes
from hotlap.engine.run_state import Position
from hotlap.engine.update import as_real, has_digits


class Guard:
    def __init__(self, is_on: bool, place: Position, writer: Writer | None, processes: Processes | None) -> None:
        self.is_on, self.place, self.writer, self.processes = is_on, place, writer, processes

    def losses(self, seen: LossRows) -> None:
        broken = first_broken(seen) if self.is_on else None
        if broken is not None:
            self._stop(*broken)

    def weights(self, parameters: Sequence[Tensor], done: int) -> None:
        """HOST SYNC, right behind another. A gradient may be broken although the loss is not, which only the next step
        would show, and none comes before the checkpoint.
        """
        if not self.is_on:
            return
        weights = [weight for weight in map(as_real, filter(has_digits, parameters)) if weight.numel()]
        norms = [norm.float() for norm in torch._foreach_norm(weights, math.inf)] if weights else []
        is_broken = bool(norms) and not bool(torch.stack(norms).isfinite().all())
        if self.processes is not None and self.processes.shards:  # each looks at other weights
            is_broken = bool(self.processes.highest(int(is_broken)))
        if is_broken:
            self._stop(done - 1, math.nan, "a weight is not finite after")

    def _stop(self, window: int, value: float, *what: str) -> NoReturn:
        if self.writer is not None:
            self.writer.drain()
        checkpoint = self.writer.last_good if self.writer is not None else None
        raise NonFiniteLoss(self.place.steps + window + 1, self.place.epoch + 1, value, checkpoint, *what)

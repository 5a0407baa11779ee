"""The learning-rate range test: which rates a model trains well with, tried on copies in a single short training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch.optim import Optimizer

from hotlap.engine.errors import BadRecipe
from hotlap.engine.recipe import Recipe
from hotlap.engine.schedule import Floats, Schedule
from hotlap.engine.snapshot import random_states, set_random_states
from hotlap.engine.twin import AnyTrainer, twin_of

SMOOTHED = 0.9  # the share of the losses before in a smoothed one
DIVERGED = 4.0  # times the lowest smoothed loss


@dataclass(frozen=True, kw_only=True)
class Rising(Schedule):
    """From the rate to `ratio` times it, by the same factor at each step."""

    ratio: float

    def factors(self, done: Floats) -> Floats:
        return np.asarray(self.ratio**done, dtype=np.float64)


def rising(recipe: Recipe, low: float, high: float, steps: int) -> Recipe:
    """Return the recipe of one step an epoch that raises the learning rate from low to high."""
    if not 0 < low < high or steps < 3:
        raise BadRecipe(f"low={low}, high={high}, steps={steps}; use 0 < low < high and at least 3 steps")
    plain = {"warmup": 0, "phases": (), "ema": None, "checkpoints": None, "monitor": None, "patience": None}
    schedule = Rising(ratio=high / low, by="epoch")
    return replace(recipe, steps_per_epoch=1, schedule=schedule, nan_guard=False, **plain)  # type: ignore[arg-type]


def begin_at(optimizer: Optimizer, low: float) -> None:
    """Set the rate of the first group to the lowest; the others keep their ratio to it."""
    first = float(optimizer.param_groups[0]["lr"])
    for group in optimizer.param_groups:
        group["lr"] = low * (float(group["lr"]) / first if first else 1.0)


@dataclass(frozen=True)
class RateRange:
    """The loss at each learning rate tried, in rising order; it ends where the loss diverged."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def smoothed(self) -> tuple[float, ...]:
        """Return the losses without most of the noise between batches."""
        total, found = 0.0, []
        for number, loss in enumerate(self.losses, 1):
            total = SMOOTHED * total + (1 - SMOOTHED) * loss
            found.append(total / (1 - SMOOTHED**number))
        return tuple(found)

    @property
    def suggested(self) -> float:
        """Return a tenth of the rate with the lowest smoothed loss: beyond that one the loss rises again."""
        lowest = int(np.nanargmin(self.smoothed))
        if lowest < 2:
            raise BadRecipe(
                f"the loss never fell from a learning rate of {self.rates[0]:.2g} on; begin lower, or check the data"
            )
        return self.rates[lowest] / 10


class Divergence:
    """A callback that ends the training once the loss is far above its lowest."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def __call__(self, record: object) -> str | None:
        loss = getattr(record, "loss", None)
        if loss is None or not hasattr(record, "scores"):
            return None
        self.losses.append(loss)
        smoothed = RateRange((), tuple(self.losses)).smoothed
        diverged = not math.isfinite(loss) or smoothed[-1] > DIVERGED * min(smoothed)
        return "stop" if diverged else None


def tried(trainer: AnyTrainer, data: Any, low: float, high: float, steps: int) -> RateRange:
    """Train copies with rising rates; the trainer and the random streams are afterwards as before."""
    if trainer.processes is not None and trainer.processes.shards:
        raise BadRecipe("weights that are shared out cannot be copied; try learning rates in one process")
    seen = Divergence()
    twin = twin_of(trainer, rising(trainer.recipe, low, high, steps), [seen])
    begin_at(twin.optimizer, low)
    before = random_states()
    try:
        history = twin.fit(data, epochs=steps)
    finally:
        set_random_states(before)
    return RateRange(tuple(record.learning_rate for record in history.epochs), tuple(seen.losses))

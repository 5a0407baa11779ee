"""A training as callbacks see it."""

from __future__ import annotations

import math
from typing import Any, Protocol

from numpy.typing import NDArray

from hotlap.engine.checkpoints import BEST, LAST
from hotlap.engine.errors import BadRecipe
from hotlap.engine.loss_readout import Looks
from hotlap.engine.optimizers import LearningRates
from hotlap.engine.parts import Parts
from hotlap.engine.run_state import Position


class Stepping(Protocol):
    """The part of a run that a callback may change."""

    parts: Parts
    place: Position
    looks: Looks
    learning: LearningRates
    table: NDArray[Any]

    def require_finite(self, done: int) -> None: ...

    def save(self, names: list[str]) -> None: ...


class UnderWay:
    """Implements `Training`. Saving and scaling are done at once, between two steps."""

    def __init__(self, run: Stepping) -> None:
        self._run = run
        self.model, self.optimizer = run.parts.model, run.parts.optimizer
        self.is_first = run.parts.processes is None or run.parts.processes.is_first
        self.stops = False

    @property
    def step(self) -> int:
        return self._run.place.steps + self._run.place.window

    @property
    def epoch(self) -> int:
        return self._run.place.epoch + 1

    def save(self, name: str) -> None:
        if self._run.parts.recipe.checkpoints is None:
            raise BadRecipe(f"a callback saves {name!r}, which needs a recipe with checkpoints=Checkpoints(folder)")
        if not name.endswith(".pt") or "/" in name or name in (LAST, BEST):
            raise BadRecipe(f"a callback saves {name!r}; use a file name of its own that ends in .pt")
        if self._run.place.window:
            self._run.require_finite(self._run.place.window)
        self._run.save([name])

    def scale_learning_rates(self, factor: float) -> None:
        if not 0 <= factor < math.inf:
            raise BadRecipe(f"a callback scales the learning rates by {factor}; use a number of 0 or more")
        run = self._run
        run.place.rate_scale *= factor
        if run.place.window:
            run.table = run.table * factor
            run.learning.begin(run.table, run.place.window)

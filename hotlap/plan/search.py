"""Picks the values of an entry to try: all of a handful, or of more those that a sampler picks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

HANDFUL = 5
LOOKS = 6  # values to try, where there are more than a handful
SLOW, ENOUGH_SLOW = 0.95, 2  # after this many values in a row below this speed, the rest of a handful is skipped
SEED = 0  # the same measurements lead to the same choices, so a resumed tune takes the same path

Value = str | None


class Search(Protocol):
    def values(self) -> Iterator[Value]:
        """Yield the next value to try, as long as one is worth it."""
        ...

    def tell(self, value: Value, speed: float) -> None:
        """Record the speed of the value tried last; 0 if it failed."""
        ...

    left_out: tuple[Value, ...]  # not worth trying, given how others did


def search(values: Sequence[Value]) -> Search:
    if len(values) <= HANDFUL:
        return EachOne(values)
    try:
        import optuna
    except ImportError:
        return EachOne(thinned(values))
    return TpeSearch(values, optuna)


def says_thinned(values: Sequence[Value]) -> str | None:
    """Return a line for the user if only a sample of the values is tried because optuna is missing."""
    if len(values) > HANDFUL and isinstance(search(values), EachOne):
        return f"{HANDFUL} of its {len(values)} values were tried; to search them all: pip install 'hotlap[tune]'"
    return None


def thinned(values: Sequence[Value]) -> list[Value]:
    """Return a handful of the values, evenly spread, with the first and the last among them."""
    last = len(values) - 1
    return [values[round(index * last / (HANDFUL - 1))] for index in range(HANDFUL)]


class EachOne:
    """Tries the values in order, the mildest first, and stops after two slow ones in a row."""

    def __init__(self, values: Sequence[Value]) -> None:
        self._values = list(values)
        self._slow = 0
        self.left_out: tuple[Value, ...] = ()

    def values(self) -> Iterator[Value]:
        for index, value in enumerate(self._values):
            if self._slow >= ENOUGH_SLOW:
                self.left_out = tuple(self._values[index:])
                return
            yield value

    def tell(self, value: Value, speed: float) -> None:
        self._slow = self._slow + 1 if speed < SLOW else 0


class TpeSearch:
    """Searches with Optuna's tree-structured Parzen estimator over the index of the values."""

    def __init__(self, values: Sequence[Value], optuna: Any) -> None:
        self._values = list(values)
        self._speeds: dict[Value, float] = {}
        self.left_out: tuple[Value, ...] = ()
        self._trial: Any = None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.TPESampler(seed=SEED, n_startup_trials=HANDFUL - 2)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)

    def values(self) -> Iterator[Value]:
        for _ in range(4 * LOOKS):  # the sampler may return to known values
            if len(self._speeds) >= LOOKS:
                return
            self._trial = self._study.ask()
            value = self._values[self._trial.suggest_int("index", 0, len(self._values) - 1)]
            if value in self._speeds:
                self._study.tell(self._trial, self._speeds[value])
            else:
                yield value

    def tell(self, value: Value, speed: float) -> None:
        self._speeds[value] = speed
        self._study.tell(self._trial, speed)

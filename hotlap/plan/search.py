"""Which value of an entry to try next: all of a handful, a sampler's choice of more."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

HANDFUL = 5
LOOKS = 6  # at values, where there are more than a handful
SLOW, ENOUGH_SLOW = 0.95, 2  # after so many values in a row that make it so slow the rest of a handful is left out
SEED = 0  # the same measurements lead to the same choices: a tune that goes on must not turn elsewhere

Value = str | None


class Search(Protocol):
    def values(self) -> Iterator[Value]:
        """The next value, as long as another is worth a look."""
        ...

    def tell(self, value: Value, speed: float) -> None:
        """What became of the last one; 0 where it failed."""
        ...

    left_out: tuple[Value, ...]  # not worth a look after what the others showed


def search(values: Sequence[Value]) -> Search:
    if len(values) <= HANDFUL:
        return EachOne(values)
    try:
        import optuna
    except ImportError:
        return EachOne(thinned(values))
    return TpeSearch(values, optuna)


def says_thinned(values: Sequence[Value]) -> str | None:
    """What to say where a sampler would have been of use."""
    if len(values) > HANDFUL and isinstance(search(values), EachOne):
        return f"of its {len(values)} values {HANDFUL} were tried; to search all: pip install 'hotlap[tune]'"
    return None


def thinned(values: Sequence[Value]) -> list[Value]:
    """A handful, evenly spread, the first and the last among them."""
    last = len(values) - 1
    return [values[round(index * last / (HANDFUL - 1))] for index in range(HANDFUL)]


class EachOne:
    """In their order, the mildest first: where two in a row only cost, a third costs more."""

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
    """Optuna's tree-structured Parzen estimator over the values in their order."""

    def __init__(self, values: Sequence[Value], optuna: Any) -> None:
        self._values = list(values)
        self._told: dict[Value, float] = {}
        self.left_out: tuple[Value, ...] = ()
        self._asked: Any = None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.TPESampler(seed=SEED, n_startup_trials=HANDFUL - 2)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)

    def values(self) -> Iterator[Value]:
        for _ in range(4 * LOOKS):  # it may come back to values that are known
            if len(self._told) >= LOOKS:
                return
            self._asked = self._study.ask()
            value = self._values[self._asked.suggest_int("index", 0, len(self._values) - 1)]
            if value in self._told:
                self._study.tell(self._asked, self._told[value])
            else:
                yield value

    def tell(self, value: Value, speed: float) -> None:
        self._told[value] = speed
        self._study.tell(self._asked, speed)

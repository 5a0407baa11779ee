"""The next epoch's shuffled order, made while this epoch trains.

A permutation of a million rows takes tens of milliseconds, during which nothing trains. Torch seeds it from the global
stream when the epoch begins; what a program draws from that stream between two epochs is mostly the same each time (a
base seed for each loader). So the seed is foretold from where the stream is now, and the order made in a thread. It is
used only if the seed then drawn is the one that was foretold: never another order, and nothing is drawn.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

import torch

LONG = 100_000  # rows; fewer are permuted faster than a thread starts
MOST_DRAWS = 16  # between two epochs


class Foresight:
    def __init__(self) -> None:
        self._state: Any = None  # of the global stream, after the seed before
        self._thread: threading.Thread | None = None
        self._seed: int | None = None
        self._order: Any = None
        self.hits = 0

    def order(self, seed: int, length: int) -> Any:
        """What torch.randperm gives with this seed, which was just drawn."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        foretold, self._order = self._order, None
        is_it = foretold is not None and seed == self._seed and len(foretold) == length
        self.hits += is_it
        order = foretold if is_it else permuted(seed, length)
        self._begin(seed, length)
        return order

    def _begin(self, seed: int, length: int) -> None:
        before, self._state = self._state, torch.get_rng_state()
        draws = None if before is None else _draws(before, seed)
        if draws is None:
            return
        self._seed = _drawn(self._state, draws)[-1]
        self._thread = threading.Thread(target=self._make, args=(self._seed, length), daemon=True)
        self._thread.start()

    def _make(self, seed: int, length: int) -> None:
        self._order = permuted(seed, length)


def permuted(seed: int, length: int) -> Any:
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))


def _draws(state: Any, seed: int) -> int | None:
    """How many seeds were drawn since, up to this one; None where something else was drawn too."""
    found = _drawn(state, MOST_DRAWS)
    return found.index(seed) + 1 if seed in found else None


def _drawn(state: Any, count: int) -> list[int]:
    generator = torch.Generator()
    generator.set_state(state)
    return [int(torch.empty((), dtype=torch.int64).random_(generator=generator).item()) for _ in range(count)]


_known: WeakKeyDictionary[Any, Foresight] = WeakKeyDictionary()


def order_of(sampler: Any, seed: int, length: int) -> Any:
    if length < LONG:
        return permuted(seed, length)
    if sampler not in _known:
        _known[sampler] = Foresight()
    return _known[sampler].order(seed, length)

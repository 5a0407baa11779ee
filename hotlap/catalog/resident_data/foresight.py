"""The next epoch's shuffled order, made while this epoch trains.

A permutation of a million rows takes tens of milliseconds, during which nothing trains. Torch seeds it from the global
stream when the epoch begins; what a program draws from that stream between two epochs is mostly the same each time (a
base seed for each loader). So the seed is foretold from where the stream is now, and the order made in a thread; before
it is known how much is drawn, for several guesses. An order is used only if the seed then drawn is the one that was
foretold: never another order, and nothing is drawn.
"""

from __future__ import annotations

import _thread
from typing import Any
from weakref import WeakKeyDictionary

import torch

LONG = 100_000  # rows; fewer are permuted faster than a thread starts
MOST_DRAWS = 16  # between two epochs
GUESSES = (3, 2, 1, 4)  # draws, until two epochs have the same: what a training with and without a validation takes
REMEMBERED = 3  # numbers of draws: the first epoch often has one of its own
AT_MOST = 8_000_000  # rows of all orders that are made at a time, 64 MB; a single one may have more


class Foresight:
    def __init__(self) -> None:
        self._state: Any = None  # of the global stream, after the seed before
        self._draws: list[int] = []  # from one epoch's seed to the next, the last one first
        self._is_steady = False  # the last one twice in a row
        self._done: _thread.LockType | None = None  # held while orders are made; no thread that the program can see
        self._is_time = False
        self._orders: dict[int, Any] = {}  # by seed
        self.hits = 0

    def order(self, seed: int, length: int) -> Any:
        """What torch.randperm gives with this seed, which was just drawn."""
        self._end()
        foretold, self._orders = self._orders.get(seed), {}
        is_it = foretold is not None and len(foretold) == length
        self.hits += is_it
        order = foretold if is_it else permuted(seed, length)
        self._begin(seed, length)
        return order

    def _begin(self, seed: int, length: int) -> None:
        before, self._state = self._state, torch.get_rng_state()
        if before is not None:
            draws = _draws(before, seed)
            if draws is None:
                return
            self._is_steady = draws in self._draws[:1]
            self._draws = [draws, *(count for count in self._draws if count != draws)][:REMEMBERED]
        guesses = self._draws[:1] if self._is_steady else list(dict.fromkeys((*self._draws, *GUESSES)))
        guesses = guesses[: max(1, AT_MOST // length)]
        drawn = _drawn(self._state, max(guesses))
        seeds = [drawn[guess - 1] for guess in guesses]
        self._is_time = False
        done = _thread.allocate_lock()
        done.acquire()
        try:
            _thread.start_new_thread(self._make, (seeds, length, done))
        except RuntimeError:  # no thread to be had
            return
        self._done = done

    def _make(self, seeds: list[int], length: int, done: _thread.LockType) -> None:
        try:
            for seed in seeds:
                self._orders[seed] = permuted(seed, length)
                if self._is_time:
                    return
        finally:
            done.release()

    def _end(self) -> None:
        """What is not made by now is made faster by who wants it."""
        done, self._done = self._done, None
        if done is not None:
            self._is_time = True
            done.acquire()


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

"""Computes the next epoch's shuffled order while this epoch trains.

A permutation of a million rows takes tens of milliseconds, during which nothing trains. Torch seeds it from the global
stream when the epoch begins; what a program draws from that stream between two epochs is mostly the same each time (a
base seed for each loader). So the seed is predicted from the current state of the stream, and a thread computes the
order; until the number of draws is known, it does so for several guesses. An order is used only if the seed drawn later
is the predicted one, so the order never differs, and predicting draws nothing from the stream.
"""

from __future__ import annotations

import _thread
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import randperm  # the function itself: a thread calls it, and the program may replace it meanwhile

LONG = 100_000  # rows; fewer are permuted in less time than a thread takes to start
MOST_DRAWS = 16  # between two epochs
GUESSES = (3, 2, 1, 4)  # draws, until two epochs agree: as in training with and without validation
REMEMBERED = 3  # draw counts: the first epoch often has a different one
AT_MOST = 8_000_000  # rows of all orders computed at a time, 64 MB; a single order may have more


class Foresight:
    def __init__(self) -> None:
        self._state: Any = None  # of the global stream, after the previous seed
        self._draws: list[int] = []  # from one epoch's seed to the next, newest first
        self._is_steady = False  # the newest count occurred twice in a row
        self._done: _thread.LockType | None = (
            None  # held while orders are computed; the thread is invisible to the program
        )
        self._is_time = False
        self._orders: dict[int, Any] = {}  # by seed
        self.hits = 0

    def order(self, seed: int, length: int) -> Any:
        """Return what torch.randperm gives with this seed, which was just drawn."""
        self._end()
        predicted, self._orders = self._orders.get(seed), {}
        is_right = predicted is not None and len(predicted) == length
        self.hits += is_right
        order = predicted if is_right else permuted(seed, length)
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
        except RuntimeError:  # no thread can be started
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
        """Stop the thread: the caller computes an unfinished order faster than it could wait for it."""
        done, self._done = self._done, None
        if done is not None:
            self._is_time = True
            done.acquire()


def permuted(seed: int, length: int) -> Any:
    return randperm(length, generator=torch.Generator().manual_seed(seed))


def _draws(state: Any, seed: int) -> int | None:
    """Return how many seeds were drawn since `state`, up to this one; None if something else was drawn too."""
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

"""Draws the indices of an epoch as torch's samplers do, but as a tensor instead of a list of Python integers.

The same numbers are drawn from the same streams at the same times. Both ways are compared once; if a version of torch
draws differently, its own samplers are used.
"""

from __future__ import annotations

import _thread
from collections.abc import Iterator
from functools import lru_cache
from types import BuiltinFunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import randperm  # the function itself: a thread calls it, and the program may replace it meanwhile
from torch.overrides import TorchFunctionMode
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from hotlap.catalog.resident_data.rows import BatchIndices, Order
from hotlap.loading.outside_profiles import are_operations_seen, unseen_operations
from hotlap.loading.purity.genuine import genuine_of
from hotlap.loading.purity.library_types import is_replaced
from hotlap.loading.purity.objects import without_our_layers

LONG = 100_000  # rows; fewer are permuted in less time than a thread takes to start
MOST_DRAWS = 16  # between two epochs
GUESSES = (3, 2, 1, 4)  # draws, until two epochs agree: as in training with and without validation
REMEMBERED = 3  # draw counts: the first epoch often has a different one
AT_MOST = 8_000_000  # rows of all orders computed at a time, 64 MB; a single order may have more
METHODS = ("random_", "item", "tolist")  # of tensors, which torch's samplers call


def drawn(loader: Any) -> Iterator[BatchIndices] | None:
    """Return the indices of each batch, or None if the loader's own sampler must be used."""
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler or batches.sampler is not loader.sampler or not _is_known(loader.sampler):
        return None
    if not all(genuine_of("torch", kind.__iter__) for kind in (BatchSampler, type(loader.sampler))):
        return None
    if _length(batches.sampler) > len(loader.dataset) or _are_replaced() or not as_torch_draws():
        return None
    return _batches(batches)


def _are_replaced() -> bool:
    """Return whether the program has replaced a function that torch's samplers call."""
    compiled = (torch.randperm, torch.empty, torch.tensor)
    if not all(isinstance(without_our_layers(function), BuiltinFunctionType) for function in compiled):
        return True
    return torch.Generator is not torch._C.Generator or any(is_replaced(torch.Tensor, name) for name in METHODS)


def _is_known(sampler: Any) -> bool:
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source) > 0
    return type(sampler) is SequentialSampler and len(sampler.data_source) > 0


def _length(sampler: Any) -> int:
    return len(sampler.data_source)


def _batches(batches: Any) -> Iterator[BatchIndices]:
    """Yield the indices of each batch. Like torch, read the batch size once with drop_last, else before each batch."""
    sampler, length = batches.sampler, _length(batches.sampler)
    generator = sampler.generator if type(sampler) is RandomSampler else None
    size, keeps_size = batches.batch_size, batches.drop_last
    seed = _seed(sampler)
    order, start = Order(_order(sampler, length, seed)), 0
    while 0 < (size := size if keeps_size else batches.batch_size) <= length - start:
        yield BatchIndices(None, order, start, size)
        start += size
    if type(sampler) is RandomSampler and (more := _more(sampler, length, seed, generator)) is not None:
        order, start, length = Order(torch.cat((order.indices[start:], more))), 0, length - start + len(more)
        while 0 < (size := size if keeps_size else batches.batch_size) <= length - start:
            yield BatchIndices(None, order, start, size)
            start += size
    if start < length and not keeps_size and size > 0:
        yield BatchIndices(None, order, start, length - start)


def _more(sampler: Any, length: int, seed: int | None, generator: Any) -> Any:
    """Return the indices that follow the last one: torch's sampler then draws once more and takes as many indices as
    the dataset has grown by since the epoch began. The draw is visible in the user's generator.
    """
    count = sampler.num_samples % length
    if are_operations_seen(torch):
        return _seen_more(length, count, seed, generator)
    if seed is not None and count:
        generator = torch.Generator().manual_seed(seed)
        torch.randperm(length, generator=generator)
    again = None if generator is None else torch.randperm(length, generator=generator)
    return again[:count] if again is not None and count else None


def _seen_more(length: int, count: int, seed: int | None, generator: Any) -> Any:
    """Do the same with exactly the operations of torch's sampler."""
    if seed is not None:
        with unseen_operations(torch):
            generator = torch.Generator().manual_seed(seed)
            torch.randperm(length, generator=generator)
    more = torch.randperm(length, generator=generator).tolist()[:count]
    return torch.tensor(more) if more else None


def _seed(sampler: Any) -> int | None:
    if type(sampler) is SequentialSampler or sampler.generator is not None:
        return None
    return int(torch.empty((), dtype=torch.int64).random_().item())


def _order(sampler: Any, length: int, seed: int | None) -> Any:
    if type(sampler) is SequentialSampler:
        return torch.arange(length)
    if seed is None:
        return torch.randperm(length, generator=sampler.generator)
    return order_of(sampler, seed, length)


@lru_cache(maxsize=1)
def as_torch_draws() -> bool:
    """Return whether small epochs give the same indices and stream states after each batch, both ways."""
    return all(
        _trail(_batches, own, last, size, later) == _trail(iter, own, last, size, later)
        for own in (False, True)
        for last in (False, True)
        for size, later in ((4, 4), (5, 5), (2, 3), (3, 20))
    )


def _trail(iterate: Any, own: bool, drop_last: bool, size: int, later: int) -> list[Any]:
    """Return the indices and stream states after each batch; the batch size changes to `later` after the first."""
    stream, generator = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    batches = BatchSampler(RandomSampler(range(10), generator=generator if own else None), size, drop_last)
    trail: list[Any] = []
    iterator = iterate(batches)
    with _Apart(stream):
        while True:
            batch = next(iterator, None)
            indices = batch.indices.tolist() if isinstance(batch, BatchIndices) else batch
            trail.append((indices, [bytes(source.get_state().numpy()) for source in (stream, generator)]))
            if batch is None:
                return trail
            batches.batch_size = later


class _Apart(TorchFunctionMode):
    """Redirects draws from torch's global stream, which the program's threads share, to another stream."""

    def __init__(self, stream: torch.Generator) -> None:
        super().__init__()
        self._stream = stream

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if getattr(func, "__name__", "") == "random_" and kwargs.get("generator") is None:
            kwargs["generator"] = self._stream
        return func(*args, **kwargs)


# The next epoch's order


class Foresight:
    """Computes the next epoch's shuffled order while this epoch trains.

    A permutation of a million rows takes tens of milliseconds, during which nothing trains. Torch seeds it from the
    global stream when the epoch begins; what a program draws from that stream between two epochs is mostly the same
    each time (a base seed for each loader). So the seed is predicted from the current state of the stream, and a
    thread computes the order; until the number of draws is known, it does so for several guesses. An order is used
    only if the seed drawn later is the predicted one, so the order never differs, and predicting draws nothing from
    the stream.
    """

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

"""Iterates over a DataLoader, taking indices exactly as torch does but making batches another way.

The sampler, the draw of the base seed, and how far indices are read ahead of the batches are torch's: with workers
prefetch_factor × num_workers batches at the start and one more per batch, without workers one per batch. Torch's usual
samplers yield their indices as tensors (see sampled_indices.py).
"""

from __future__ import annotations

import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from inspect import unwrap
from itertools import chain
from types import CellType, FunctionType
from typing import Any, Protocol

import torch
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from hotlap.catalog.resident_data.rows import BatchIndices
from hotlap.catalog.resident_data.sampled_indices import drawn
from hotlap.loading.outside_profiles import are_operations_seen, unprofiled, unseen_operations
from hotlap.loading.pure import is_traced

Failed = Callable[[Exception], None]
_pin: Any = pin_memory
_profiler_enabled: Any = torch._C._autograd._profiler_enabled
_usual_next: Any = unwrap(_BaseDataLoaderIter.__next__)  # without the seams, which wrap our own iterator


class Pick(Protocol):
    def __call__(self, wanted: BatchIndices, pin: bool) -> Any: ...

    def is_current(self) -> bool: ...


class GatheringIterator(_SingleProcessDataLoaderIter):
    """Makes batches from the store; to the program it looks like torch's iterator of a loader without workers.

    `before` is the iterator of persistent workers that torch would reuse, so that no base seed is drawn again; if it
    still has its workers, they make the batches that the store cannot.
    """

    def __init__(self, loader: Any, pick: Pick, failed: Failed, before: Any = None) -> None:
        if before is None:
            _begin(self, loader)
        else:
            _BaseDataLoaderIter.__init__(self, _LoaderWithoutSampling(loader))  # type: ignore[arg-type]
            self._pin_memory, self._pin_memory_device = before._pin_memory, before._pin_memory_device
        self._total, self._pins = len(loader.dataset), self._pin_memory
        self._index_sampler = loader._index_sampler
        self._pick, self._failed = pick, failed
        self._loader, self._workers_of = weakref.ref(loader), loader._iterator
        self._plain: Any = _MapDatasetFetcher(loader.dataset, True, loader.collate_fn, loader.drop_last)
        self._dataset_fetcher = self._plain
        self.is_own_way = True
        self._ahead_by = (loader.prefetch_factor or 2) * loader.num_workers
        self._profile_name = f"enumerate(DataLoader)#{_usual_name(loader)}.__next__"
        self._waiting: deque[tuple[list[Any] | None, BatchIndices | None]] = deque()
        self._rest: Iterator[Any] | None = None  # the indices of the batches that persistent workers make
        self._draw(loader)
        if loader.num_workers:
            self._reset(loader, first_iter=before is None)

    def is_current(self) -> bool:
        return self.is_own_way and self._pick.is_current()

    def __next__(self) -> Any:
        """Return the next batch. Torch's profiler mark takes longer than a batch: skipped if nobody sees it."""
        if are_operations_seen(torch) or self._sampler_iter is None or self._asks_program:
            return _usual_next(self)
        batch = self._next_data()
        self._num_yielded += 1
        return batch

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._waiting.clear()
        self._rest = None
        self._draw(loader)
        if loader.num_workers:
            self._prime(self._ahead_by)

    def _draw(self, loader: Any) -> None:
        """Prepare the indices of an epoch; nothing is drawn before the first one is requested."""
        own = drawn(loader)
        if own is not None:  # a program that skips batches finds what its sampler would give
            self._sampler_iter = (batch.indices.tolist() for batch in own)
        self._drawn: Iterator[Any] = self._sampler_iter if own is None else own
        self._asks_program = own is None and not loader.num_workers

    def _prime(self, count: int) -> None:
        for _ in range(count):
            self._take_one()

    def _take_one(self) -> None:
        try:
            indices = next(self._drawn)
        except StopIteration:
            return
        own = isinstance(indices, BatchIndices)
        self._waiting.append((None, indices) if own else (indices, wanted(indices, self._total)))

    def _next_data(self) -> Any:
        if self._rest is not None:
            return self._workers_of._next_data()
        if self._asks_program:
            return self._next_of_sampler()
        if not self._num_workers:
            self._take_one()
        if not self._waiting:
            raise StopIteration
        indices, rows = self._waiting.popleft()
        if self._num_workers:
            self._take_one()
        return self._made(indices, rows)

    def _next_of_sampler(self) -> Any:
        """Use torch's own functions, so that an error in the program's sampler has the same traceback."""
        self._dataset_fetcher, pins, self._pin_memory = (
            _OwnFetcher(self),
            self._pin_memory,
            False,
        )  # our batches are already pinned
        try:
            return super()._next_data()  # type: ignore[no-untyped-call]
        finally:
            self._dataset_fetcher, self._pin_memory = self._plain, pins

    def _made(self, indices: list[Any] | None, rows: BatchIndices | None) -> Any:
        """Make a batch from the store, or torch's way if the indices are not row numbers or anything failed.

        While the program profiles itself without workers, torch's way is used too: its fetching belongs in the profile.
        """
        if rows is not None and self.is_own_way and (self._num_workers or not (_profiler_enabled() or is_traced())):
            try:
                with unprofiled(torch) if _profiler_enabled() else nullcontext():
                    return self._pick(rows, self._pins)
            except Exception as error:  # noqa: BLE001 whatever our own code raises
                self.is_own_way = False
                self._failed(error)
        if indices is None and rows is not None:
            with unseen_operations(torch) if are_operations_seen(torch) else nullcontext():
                indices = rows.indices.tolist()
        return self._usually(indices)

    def _usually(self, indices: list[Any] | None) -> Any:
        """Fetch with torch's own functions, so that an error in the dataset has the same traceback."""
        if self._workers_of is not None and (loader := self._loader()) is not None:
            return self._from_workers(loader, indices)
        if self._num_workers or self._asks_program:
            batch = self._plain.fetch(indices)
            return _pin(batch, self._pin_memory_device) if self._pins else batch
        usual: Any = object.__new__(_SingleProcessDataLoaderIter)
        vars(usual).update(vars(self), _sampler_iter=iter((indices,)))
        vars(usual).pop("_next_data", None)  # another entry's override on this iterator
        return usual._next_data() if are_operations_seen(torch) else _usual_next(usual)

    def _from_workers(self, loader: Any, indices: list[Any] | None) -> Any:
        """Return the batch that persistent workers make, who have the rest of the epoch to make from here on."""
        if self._rest is None:
            self._rest = chain([indices], self._undrawn())
            workers, sampler = self._workers_of, self._workers_of._index_sampler
            workers.showing = False
            workers._index_sampler = self._rest
            try:
                workers._reset(loader)
            finally:
                workers._index_sampler = sampler
        return self._workers_of._next_data()

    def _undrawn(self) -> Iterator[Any]:
        """Yield the indices that are drawn already, then those that are not."""
        while self._waiting:
            indices, rows = self._waiting.popleft()
            yield rows.indices.tolist() if indices is None and rows is not None else indices
        for drawn_indices in self._drawn:
            yield drawn_indices.indices.tolist() if isinstance(drawn_indices, BatchIndices) else drawn_indices


class _OwnFetcher:
    """Replaces torch's fetcher for one batch."""

    def __init__(self, iterator: GatheringIterator) -> None:
        self._iterator = iterator

    def fetch(self, indices: list[Any]) -> Any:
        iterator = self._iterator
        return iterator._made(indices, wanted(indices, iterator._total))


class GatheringIteratorForWorkers(GatheringIterator):
    """Looks like torch's iterator of a loader with workers, though there are no workers to shut down."""

    _workers: tuple[Any, ...] = ()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return _MultiProcessingDataLoaderIter

    def _shutdown_workers(self) -> None:
        pass


for _kind, _usual in (
    (GatheringIterator, _SingleProcessDataLoaderIter),
    (GatheringIteratorForWorkers, _MultiProcessingDataLoaderIter),
):
    _kind.__module__, _kind.__name__, _kind.__qualname__ = _usual.__module__, _usual.__name__, _usual.__qualname__


class BatchObserver(Protocol):
    """Receives the batches that workers make."""

    def collate_in_workers(self) -> Any: ...

    def shown(self, rows: Any, made: Any) -> None: ...

    def batch_of(self, made: Any) -> Any: ...

    def on_waited(self, seconds: float) -> None:
        """Account for time spent waiting for a batch that is then kept."""
        ...


class RecordingIterator(_MultiProcessingDataLoaderIter):
    """Torch's own iterator over workers; passes each batch, with its indices, to the store before handing it out."""

    def __init__(self, loader: Any, store: BatchObserver, failed: Failed) -> None:
        self._under_way: deque[Any] = deque()
        self._store, self._failed = store, failed
        self.showing = True
        self._total = len(loader.dataset)
        super().__init__(loader)
        self._profile_name = f"enumerate(DataLoader)#{_usual_name(loader)}.__next__"

    @property
    def _collate_fn(self) -> Any:
        """The collate_fn that torch reads when it starts the workers."""
        return self._store.collate_in_workers()

    @_collate_fn.setter
    def _collate_fn(self, collate: Any) -> None:
        pass

    def is_current(self) -> bool:
        return True

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._under_way.clear()
        super()._reset(loader, first_iter)

    def _next_index(self) -> Any:
        indices = next(self._sampler_iter)
        self._under_way.append(indices)
        return indices

    def _next_data(self) -> Any:
        began = time.perf_counter()
        made = super()._next_data()  # type: ignore[no-untyped-call]
        if self.showing:
            self._store.on_waited(time.perf_counter() - began)
        rows = wanted(self._under_way.popleft(), self._total)
        if rows is not None and self.showing:
            try:
                self._store.shown(rows.indices, made)
            except Exception as error:  # noqa: BLE001 whatever our own code raises
                self.showing = False
                self._failed(error)
        return self._store.batch_of(made)


def made_by_torch(loader: Any, make: Callable[[], Any]) -> Any:
    """Run torch's code for making an iterator, with its warnings about too many workers, but make ours instead."""
    usual = unwrap(torch.utils.data.DataLoader._get_iterator)
    names = usual.__globals__
    names.setdefault("__warningregistry__", {})
    replacements = dict.fromkeys(("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"), lambda _: make())
    return FunctionType(usual.__code__, {**names, **replacements})(loader)


class _Begun(Exception):
    """Raised once an iterator over workers has done everything that comes before starting them."""


def _begin(iterator: GatheringIterator, loader: Any) -> None:
    """Initialise as the class that torch would have used, so that its warnings point at the right line."""
    usual = unwrap(_MultiProcessingDataLoaderIter.__init__)
    if loader.num_workers and usual.__code__.co_freevars == ("__class__",):
        begin = FunctionType(usual.__code__, usual.__globals__, closure=(CellType(_SingleProcessDataLoaderIter),))
        with suppress(_Begun):
            begin(iterator, _LoaderBeforeWorkers(loader))
    elif not loader.num_workers:
        _SingleProcessDataLoaderIter.__init__(iterator, loader)
    if "_base_seed" not in vars(iterator):
        _BaseDataLoaderIter.__init__(iterator, loader)


class _LoaderBeforeWorkers:
    """A loader whose prefetch_factor stops torch's constructor just before it starts workers."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    @property
    def prefetch_factor(self) -> int:
        raise _Begun

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _LoaderWithoutSampling:
    """A loader whose sampler and generator are not used, and for which torch repeats no warning."""

    pin_memory = False

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._index_sampler: tuple[Any, ...] = ()
        self.generator = torch.Generator()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _usual_name(loader: Any) -> str:
    return "_MultiProcessingDataLoaderIter" if loader.num_workers else "_SingleProcessDataLoaderIter"


def wanted(indices: Any, total: int) -> BatchIndices | None:
    rows = as_indices(indices, total) if isinstance(indices, list | tuple) else None
    return None if rows is None else BatchIndices(rows)


def as_indices(indices: Any, total: int) -> Any:
    """Return the indices as a tensor, or None unless all are row numbers of type int: not pairs of index and size, not
    negative, and not of another number type, which a dataset may treat differently.
    """
    if set(map(type, indices)) != {int}:
        return None
    try:
        rows = torch.frombuffer(array("q", indices), dtype=torch.int64)
    except (TypeError, ValueError, OverflowError):  # ValueError: the list is empty
        return None
    low, high = torch.aminmax(rows)
    return rows if int(low) >= 0 and int(high) < total else None

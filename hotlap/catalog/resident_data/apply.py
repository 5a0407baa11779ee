"""Replaces the iteration of DataLoaders whose dataset can be kept in memory."""

from __future__ import annotations

import os
import sys
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from hotlap.catalog.resident_data.batch_picker import BatchPicker
from hotlap.catalog.resident_data.caches import Caches, DatasetRows, is_complete, needs_workers
from hotlap.catalog.resident_data.store import Store
from hotlap.loading.outside_profiles import is_profiled, unprofiled
from hotlap.loading.pure import is_traced
from hotlap.loading.samples import can_be_pickled
from hotlap.loading.unsuited import DataChanged, Unfit, unsuited
from hotlap.patch.forks import why_no_processes
from hotlap.patch.signals import comes_from_outside
from hotlap.runtime.loader_arguments import start_method
from hotlap.runtime.site import Original, Site

if TYPE_CHECKING:
    from hotlap.catalog.resident_data.device_leaves import DeviceLeaves


def apply(site: Site) -> None:
    keeper = Keeper(site)
    site.stand_in(site.seams.iterating, keeper.iterate)
    site.ledger.later(keeper.forget)


class Keeper:
    def __init__(self, site: Site) -> None:
        self.site, self.torch = site, site.torch
        self.caches = Caches(site)
        self._home = os.getpid()
        self._persistent: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._learned: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def forget(self) -> None:
        """Drop everything, except in a forked child: iterators freed there would end our workers, and device memory
        cannot be freed.
        """
        if os.getpid() != self._home:
            return
        self.caches.clear()
        self._persistent.clear()
        self._learned.clear()

    def iterate(self, original: Original, loader: Any, args: Any, kwargs: Any) -> Any:
        if self.caches.busy or os.getpid() != self._home:
            return original(*args, **kwargs)
        before = self._persistent.get(loader)
        if before is not None and not self._is_complete(before, loader):
            if not before.is_current():
                self._persistent.pop(loader)  # torch goes on with its own workers, which `loader` holds
                return original(*args, **kwargs)
            before._reset(loader)
            return before
        if before is None and (is_profiled(self.torch) or is_traced()):
            return original(*args, **kwargs)  # our memory and calls would show up in the program's profile
        why = unsuited(self.torch, loader) or (why_no_processes() if loader.num_workers else None)
        if why is not None:
            self.site.no_effect(f"{type(loader.dataset).__name__}: {why}")
        with unprofiled(self.torch):
            cache = None if why is not None else self.caches.of(loader, in_workers=loader in self._persistent)
        if cache is None or cache.store is None:
            return original(*args, **kwargs)
        return self._iterator(partial(original, *args, **kwargs), loader, cache, cache.store)

    def _is_complete(self, before: Any, loader: Any) -> bool:
        """Return whether persistent workers have delivered every item, or all but a few that are quick to fetch here.

        Until then, and again once everything is cached, changes to the dataset do not matter to their loader: they hold
        a copy from when they started.
        """
        from hotlap.catalog.resident_data.iterator import RecordingIterator

        cache = self.caches.find(loader.dataset, loader.collate_fn)
        store = None if cache is None else cache.store
        if type(before) is not RecordingIterator or not before.showing or store is None:
            return False
        return is_complete(store)

    def _iterator(self, original: Original, loader: Any, cache: DatasetRows, store: Store) -> Any:
        from hotlap.catalog.resident_data.iterator import (
            GatheringIterator,
            GatheringIteratorForWorkers,
            RecordingIterator,
            made_by_torch,
        )

        self.site.seams.watch_fetches_of(GatheringIterator)
        before = self._persistent.get(loader)
        if needs_workers(loader, store) and not store.missing:
            return original()  # torch's workers; from the next epoch on they wait, should they be needed
        left_to_workers = bool(loader.num_workers) and store.missing > 0
        is_forked = start_method(loader.multiprocessing_context) == "fork"
        if left_to_workers and not is_forked and (store.forks_only or not can_be_pickled()):
            self.site.no_effect(
                f"{store.name}: its workers are not forked, and its batches do not show which samples to keep"
            )
            return original()
        failed = partial(self._failed, cache, store)
        self.site.coming |= store.missing > 0
        if not left_to_workers:
            pick = BatchPicker(self.caches, cache, store, loader, self._learning(loader, cache))
            usual = before if before is not None else loader._iterator
            make = partial(
                GatheringIteratorForWorkers if loader.num_workers else GatheringIterator, loader, pick, failed, usual
            )
            iterator = make() if usual is not None else made_by_torch(loader, make)
        elif loader._iterator is not None or not getattr(loader, "in_order", True):
            self.site.no_effect(
                f"{store.name}: its workers take {store.seconds:.0f} s and deliver batches out of order"
            )
            return original()
        else:
            iterator = made_by_torch(loader, partial(RecordingIterator, loader, store, failed))
            if loader.persistent_workers and store.watch.is_shared:
                loader._iterator = iterator  # as torch does
            self.caches.report(
                cache, f"{store.name}: {store.total} items, cached as its workers fetch them for the first time"
            )
        if loader.persistent_workers and loader.num_workers:
            self._persistent[loader] = iterator
        return iterator

    def _failed(self, cache: DatasetRows, store: Store, error: Exception) -> None:
        if isinstance(error, DataChanged):
            self.caches.doubt(store, str(error))
        if isinstance(error, Unfit):
            self.caches.drop(cache, store, str(error))
        elif self.site.seams.guard.strict or comes_from_outside(error):
            raise error
        else:
            self.caches.drop(cache, store, f"it failed ({type(error).__name__}: {error})")

    def _learning(self, loader: Any, cache: DatasetRows) -> DeviceLeaves | None:
        """Return what is known of the use of this loader's batches, shared by loaders iterated on the same line."""
        if self.site.value == "host" or not self.on_a_device():
            return None
        if loader not in self._learned:
            key = (_place(), type(loader.sampler), loader.batch_size)
            self._learned[loader] = cache.by_place.setdefault(key, new_learning())
        learning: DeviceLeaves = self._learned[loader]
        return learning

    def on_a_device(self) -> bool:
        return bool(self.torch.cuda.is_initialized())


def new_learning() -> DeviceLeaves:
    from hotlap.catalog.resident_data.device_leaves import DeviceLeaves

    return DeviceLeaves()


def _place() -> tuple[str, int]:
    """Return the file and line that iterate, outside torch and hotlap."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in (
        __name__.partition(".")[0],
        "torch",
    ):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno

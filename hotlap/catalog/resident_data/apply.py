"""Replaces the iteration of DataLoaders whose dataset can be kept in memory."""

from __future__ import annotations

import os
import sys
import time
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from hotlap.catalog.resident_data.custom_collate import stored
from hotlap.catalog.resident_data.identity import RepeatedClasses, Weakly, same_function
from hotlap.catalog.resident_data.rows import BatchIndices
from hotlap.catalog.resident_data.store import AT_FIRST, EAGER, SHARE_OF_MEMORY, Store, host_memory, megabytes
from hotlap.loading.identity import AlsoOfLists
from hotlap.loading.outside_profiles import is_profiled, unprofiled
from hotlap.loading.pure import DataChanged, Unfit, fetch, is_traced, levels_of
from hotlap.loading.purity.genuine import genuine_of
from hotlap.patch.forks import why_no_processes
from hotlap.patch.signals import comes_from_outside
from hotlap.patch.voice import say
from hotlap.runtime.loader_arguments import start_method
from hotlap.runtime.site import Original, Site

if TYPE_CHECKING:
    from hotlap.catalog.resident_data.device_leaves import DeviceLeaves

SHARE_WHEN_REQUESTED = 0.9  # of the free device memory, if the value "device" was given
MOST_REPORTED = 3  # datasets: a training and a validation set, and perhaps a test set
UNDER_TEST = 0.01  # of the time, spent on fetching rows the program's own way as well, to compare them
MOST_TO_KEEP, SHARE_TO_KEEP = 3.0, 0.05  # seconds plus a share of the epoch that caching its items may take
LITTLE = 0.1  # of the items: a loader that drops its last batch never shows this many in an epoch
MOST_COLLATES = 2  # of a dataset: each has its own store


def apply(site: Site) -> None:
    keeper = Keeper(site)
    site.stand_in(site.seams.iterating, keeper.iterate)
    site.ledger.later(keeper.forget)


class Keeper:
    def __init__(self, site: Site) -> None:
        self.site, self.torch = site, site.torch
        self._home = os.getpid()
        self._busy = False  # a dataset may read a loader of its own
        self._stores: AlsoOfLists[list[DatasetRows]] = AlsoOfLists()
        self._persistent: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._learned: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._reports: dict[int, str] = {}
        self._often = RepeatedClasses()

    def forget(self) -> None:
        """Drop everything, except in a forked child: iterators freed there would end our workers, and device memory
        cannot be freed.
        """
        if os.getpid() != self._home:
            return
        self._stores.clear()
        self._persistent.clear()
        self._learned.clear()

    def iterate(self, original: Original, loader: Any, args: Any, kwargs: Any) -> Any:
        if self._busy or os.getpid() != self._home:
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
            cache = None if why is not None else self._cache(loader)
        if cache is None or cache.store is None:
            return original(*args, **kwargs)
        return self._iterator(partial(original, *args, **kwargs), loader, cache, cache.store)

    def _is_complete(self, before: Any, loader: Any) -> bool:
        """Return whether persistent workers have delivered every item, or all but a few that are quick to fetch here.

        Until then, and again once everything is cached, changes to the dataset do not matter to their loader: they hold
        a copy from when they started.
        """
        from hotlap.catalog.resident_data.iterator import RecordingIterator

        caches = self._stores.get(loader.dataset) or []
        store = next((cache.store for cache in caches if cache.is_for(loader.collate_fn)), None)
        if type(before) is not RecordingIterator or not before.showing or store is None:
            return False
        if not store.missing:
            return True
        is_little = store.missing * store.seconds <= EAGER and store.missing <= LITTLE
        return is_little and store.watch.changed_at_epoch() is None

    # Caches

    def _cache(self, loader: Any) -> DatasetRows | None:
        """Return the cache of a loader's dataset, ready to be read; without a store, the dataset cannot be cached."""
        dataset, collate = loader.dataset, loader.collate_fn
        caches = self._stores.get(dataset)
        if caches is None:
            if (why := self._often.why_not(type(dataset))) is not None:
                self.site.no_effect(f"{type(dataset).__name__}: {why}")
                return None
            caches = []
            self._stores.put(dataset, caches)
        cache = next((rows for rows in caches if rows.is_for(collate)), None)
        if cache is None and len(caches) >= MOST_COLLATES:
            self._give_up(caches)
            return None
        self._busy = True
        try:
            if cache is None:
                cache = self._new_cache(dataset, collate, loader)
                caches.append(cache)
            elif cache.store is not None:
                self.check(dataset, cache, cache.store, in_workers=loader in self._persistent)
            if cache.store is not None and cache.store.collate is not collate:
                self._renew(cache, cache.store, collate)
            if cache.store is not None and loader.num_workers:
                self._own(cache, cache.store)
            if cache.store is not None and not loader.num_workers:
                self._watch_closely(loader, cache, cache.store)
            if cache.store is not None and cache.store.missing:
                self._fill(loader, cache, cache.store)
            self._count(type(dataset), cache)
        finally:
            self._busy = False
        return cache

    def _new_cache(self, dataset: Any, collate: Any, loader: Any) -> DatasetRows:
        try:
            store = stored(self.torch, dataset, collate)
            store.require_worth(loader)
            store.on_waited = self._waited
            return DatasetRows(Weakly(collate), store)
        except Unfit as unfit:
            self.site.refused(f"{type(dataset).__name__}: {unfit}")
            return DatasetRows(Weakly(collate), None)

    def _waited(self, seconds: float) -> None:
        self.site.seconds_keeping += seconds

    def _fill(self, loader: Any, cache: DatasetRows, store: Store) -> None:
        """Fill the store only if that is quick: the program may want few batches, or its workers may be faster."""
        workers = loader.num_workers
        if workers and start_method(loader.multiprocessing_context) != "fork":
            return  # in a process not forked from this one, a set of strings, for example, has another order
        if needs_workers(loader, store):
            return
        if workers or not self.site.waits():
            self.fill_soon(loader.dataset, cache, store, here=not workers)

    def fill_soon(self, dataset: Any, cache: DatasetRows, store: Store, here: bool) -> None:
        if store.missing * store.seconds > (EAGER if cache.requested or here else AT_FIRST):
            return
        try:
            store.fill(dataset, here=here)
        except Unfit as unfit:
            self._drop(cache, store, str(unfit))

    def _renew(self, cache: DatasetRows, store: Store, collate: Any) -> None:
        """Switch to a new collate_fn with the same code as the previous one."""
        try:
            store.use(collate)
        except Unfit as unfit:
            self._drop(cache, store, str(unfit))

    def _own(self, cache: DatasetRows, store: Store) -> None:
        if store.shared is not None and store.bytes > host_memory() * SHARE_OF_MEMORY:
            self._drop(cache, store, f"there is not enough memory for its workers' copy of {megabytes(store.bytes)}")
        else:
            store.own_rows()

    def _give_up(self, caches: list[DatasetRows]) -> None:
        """Drop all caches of a dataset: a collate_fn created anew each epoch would need a store each time."""
        why = f"it is read with more than {MOST_COLLATES} collate_fns, or with a new one each time"
        for cache in caches:
            if cache.store is not None:
                self._drop(cache, cache.store, why)

    def _count(self, kind: type, cache: DatasetRows) -> None:
        if not cache.requested:
            self._often.proven(kind)
        elif not cache.again:
            self._often.read_again(kind)
            cache.again = True
        cache.requested = True

    def check(self, dataset: Any, cache: DatasetRows, store: Store, in_workers: bool) -> None:
        """Drop the cache if the dataset has changed. Persistent workers see only changes to shared memory."""
        try:
            why = store.changed_elsewhere() if in_workers else store.changed(dataset)
        except Unfit as unfit:
            why = str(unfit)
        if why is not None:
            self._doubt(store, why)
            self._drop(cache, store, why)

    def _watch_closely(self, loader: Any, cache: DatasetRows, store: Store) -> None:
        try:
            find = partial(levels_of, self.torch, loader.dataset) if store.shared is None else None
            store.watch.closely(store.batch_seconds(loader.batch_size or 1), find)
        except Unfit as unfit:
            self._drop(cache, store, str(unfit))

    def _drop(self, cache: DatasetRows, store: Store, why: str) -> None:
        cache.store = None
        if cache.reported:
            self.report(cache, f"{cache.reported}; disabled later: {why}")
        else:
            self.site.refused(f"{store.name}: {why}")

    def _doubt(self, store: Store, why: str) -> None:
        """Tell the user at once that batches handed out since the last full comparison may have been wrong."""
        if store.unsure:
            before = "the last batch" if store.unsure == 1 else f"the last {store.unsure} batches"
            say(f"resident-data is disabled: {store.name}: {why}; {before} may have been wrong")
            self.site.doubted, store.unsure = True, 0

    # Iterating

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
        if left_to_workers and start_method(loader.multiprocessing_context) != "fork" and store.forks_only:
            self.site.no_effect(
                f"{store.name}: its workers are not forked, and its batches do not show which samples to keep"
            )
            return original()
        failed = partial(self._failed, cache, store)
        self.site.coming |= store.missing > 0
        if not left_to_workers:
            pick = BatchPicker(self, cache, store, loader, self._learning(loader, cache))
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
            self.report(
                cache, f"{store.name}: {store.total} items, cached as its workers fetch them for the first time"
            )
        if loader.persistent_workers and loader.num_workers:
            self._persistent[loader] = iterator
        return iterator

    def _failed(self, cache: DatasetRows, store: Store, error: Exception) -> None:
        if isinstance(error, DataChanged):
            self._doubt(store, str(error))
        if isinstance(error, Unfit):
            self._drop(cache, store, str(error))
        elif self.site.seams.guard.strict or comes_from_outside(error):
            raise error
        else:
            self._drop(cache, store, f"it failed ({type(error).__name__}: {error})")

    def report(self, cache: DatasetRows, text: str) -> None:
        cache.reported = text
        self._reports[id(cache)] = text
        self.site.idle = not any(rows.store is not None for caches in self._stores.values() for rows in caches)
        self.site.applied("; ".join(dict.fromkeys(list(self._reports.values())[-MOST_REPORTED:])))

    # Devices

    def _learning(self, loader: Any, cache: DatasetRows) -> DeviceLeaves | None:
        """Return what is known of the use of this loader's batches, shared by loaders iterated on the same line."""
        if self.site.value == "host" or not self.on_a_device():
            return None
        if loader not in self._learned:
            key = (_place(), type(loader.sampler), loader.batch_size)
            self._learned[loader] = cache.by_place.setdefault(key, new_learning())
        learning: DeviceLeaves = self._learned[loader]
        return learning

    def settle(self, cache: DatasetRows, store: Store, learning: DeviceLeaves) -> None:
        """Copy the leaves known to go to a device there, if they fit; called once all items are cached."""
        wanted, learning.waiting = learning.waiting, {}
        device = next(iter(wanted.values()))
        free = self.device_memory(device)
        share = SHARE_WHEN_REQUESTED if self.site.value == "device" else SHARE_OF_MEMORY
        needed = store.bytes_for(wanted)
        if needed > free * share:
            self.report(
                cache,
                f"{cache.reported}; not on the device: needs {megabytes(needed)}, {megabytes(free)} free on {device}",
            )
            return
        store.copy_to(wanted)
        learning.devices = wanted
        parts = f"{len(learning.devices)} of {len(store.rows)} tensors per batch"
        self.report(cache, f"{store.name}: {store.total} items, {parts} taken from {megabytes(needed)} on {device}")

    def on_a_device(self) -> bool:
        return bool(self.torch.cuda.is_initialized())

    def device_memory(self, device: Any) -> float:
        return float(self.torch.cuda.mem_get_info(device)[0])


@dataclass
class DatasetRows:
    """The cache of one dataset under one collate_fn; without a store it could not be cached."""

    collate: Weakly
    store: Store | None
    reported: str = ""
    requested: bool = False  # read for one epoch
    again: bool = False  # read for another epoch
    read: bool = False  # some batch was made from it
    by_place: dict[Any, DeviceLeaves] = field(default_factory=dict)

    def is_for(self, collate: Any) -> bool:
        """Return whether it serves this collate_fn. Without a store, its own collate_fn may have been freed."""
        mine = self.collate() if self.store is None else self.store.collate
        return mine is not None and same_function(mine, collate)


class BatchPicker:
    """Makes batches from the store."""

    def __init__(
        self, keeper: Keeper, cache: DatasetRows, store: Store, loader: Any, learning: DeviceLeaves | None
    ) -> None:
        self._keeper, self._cache, self._store, self._dataset = keeper, cache, store, loader.dataset
        self._learning = learning
        self._ready = False
        self._fills = not loader.num_workers  # once the entry no longer has to wait
        # Workers copy the dataset when the epoch starts and would not see it change
        self._live = not loader.num_workers
        self._looks = self._live or store.watch.is_shared
        by_rows = self._live and store.shared is None and store.watch.is_by_rows
        self._levels = levels_of(keeper.torch, loader.dataset) if by_rows else None
        self._untried = 0  # batches since a row was last compared with the program's own fetch
        self._spent, self._since = 0.0, time.perf_counter()

    def __call__(self, wanted: BatchIndices, pin: bool) -> Any:
        store, learning, began = self._store, self._learning, time.perf_counter()
        if self._looks and (what := self._changed(wanted)) is not None:
            raise DataChanged(f"{what}, from which its items are made, changed during an epoch")
        if store.spoiled is not None:
            raise Unfit(store.spoiled)
        if (batch := self._not_from_store(wanted)) is not None:
            if self._live and store.missing:
                self._pay(time.perf_counter() - began - store.last_fetched)
            return self._keeper.torch.utils.data._utils.pin_memory.pin_memory(batch) if pin else batch
        if not self._ready:
            self._begin()
        if self._live:
            self._try_one(wanted)
            store.handed_out += 1
        if learning is None:
            return store.built(store.batch(wanted, pin=pin), wanted, pin)
        if not learning.settled and learning.asked():
            learning.waiting, learning.devices = learning.devices, {}
        if learning.waiting and not store.missing:
            self._keeper.settle(self._cache, store, learning)
        leaves = store.batch(wanted, learning.devices, pin)
        return store.built(leaves if learning.settled else learning.watch(leaves), wanted, pin)

    def is_current(self) -> bool:
        """Return whether the store still gives what persistent workers would, checked at the start of an epoch."""
        cache, store = self._cache, self._store
        if cache.store is store and store.watch.is_shared:
            self._keeper.check(self._dataset, cache, store, in_workers=True)
        return cache.store is store

    def _pay(self, seconds: float) -> None:
        """Account for time spent caching what the program fetches: that pays off only if there is another epoch."""
        store = self._store
        store.paid += seconds
        if store.paid > MOST_TO_KEEP + SHARE_TO_KEEP * (time.perf_counter() - self._since) and store.spoiled is None:
            store.spoiled = f"caching the items of the first epoch took {store.paid:.1f} s, which is too long"

    def _changed(self, wanted: BatchIndices) -> str | None:
        watch = self._store.watch
        if not self._live:
            return watch.changed_elsewhere(at_epoch=False)
        found = watch.changed_now()
        if found is not None or self._levels is None:
            self._store.unsure = max(self._store.unsure, self._store.handed_out if watch.found_late else 0)
            return found
        return watch.changed_in(self._levels.rows(wanted.indices))

    def _not_from_store(self, wanted: BatchIndices) -> Any:
        """Fetch a batch the program's own way while the unchanged program is timed or rows are missing, else None."""
        store, waits = self._store, self._live and self._keeper.site.waits()
        if waits and not store.missing:
            return store.collate(fetch(self._dataset, wanted.indices.tolist()))
        if self._fills and not waits:
            self._fills = False
            if store.missing:
                self._keeper.fill_soon(self._dataset, self._cache, store, here=True)
        return store.fetched(self._dataset, wanted.indices.tolist()) if store.missing else None

    def _try_one(self, wanted: BatchIndices) -> None:
        """Compare one row of this batch with the program's own fetch, within a hundredth of the time."""
        now = time.perf_counter()
        self._untried += 1
        if self._spent > UNDER_TEST * (now - self._since):
            return
        row = int(wanted.indices[self._store.random.randrange(len(wanted.indices))])
        if not self._store.is_row(self._dataset, row):
            self._store.unsure = max(self._untried, self._store.unsure)
            raise DataChanged(f"item {row}, fetched the program's own way, differs from the cached one")
        self._untried = 0
        self._spent += time.perf_counter() - now

    def _begin(self) -> None:
        self._ready = True
        store = self._store
        if not self._cache.read:
            self._cache.read = True
            where = "read in place" if store.shared is not None else f"{megabytes(store.bytes)} in host memory"
            self._keeper.report(self._cache, f"{store.name}: {store.total} items, {where}")


def needs_workers(loader: Any, store: Store) -> bool:
    """Return whether persistent workers must exist although all items are cached: they copied the dataset when they
    started, so if what they share with this process changes, nobody else can make their batches.
    """
    return bool(loader.persistent_workers) and store.watch.is_shared and loader._iterator is None


def new_learning() -> DeviceLeaves:
    from hotlap.catalog.resident_data.device_leaves import DeviceLeaves

    return DeviceLeaves()


def unsuited(torch: Any, loader: Any) -> str | None:
    """Return why a loader is skipped without looking at its data, or None."""
    data, kind = torch.utils.data, type(loader.dataset)  # not isinstance, which may run the dataset's __class__
    if issubclass(kind, data.IterableDataset):
        return "it is a stream (IterableDataset)"
    if issubclass(kind, data.datapipes.datapipe.MapDataPipe):
        return "it is a data pipe"
    if not loader._auto_collation:
        return "its sampler or dataset already makes whole batches"
    usual = (data._utils.fetch._MapDatasetFetcher.fetch, data.DataLoader._get_iterator)
    if not all(genuine_of("torch", function) for function in usual):
        return "the program has replaced torch's own fetching code"
    if type(loader)._get_iterator is not data.DataLoader._get_iterator:
        return f"{type(loader).__name__} has its own way of iterating"
    if data.get_worker_info() is not None:
        return "it is read inside a worker"
    if loader.num_workers and loader.worker_init_fn is not None:
        return "its worker_init_fn would not run"
    return None


def _place() -> tuple[str, int]:
    """Return the file and line that iterate, outside torch and hotlap."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in (
        __name__.partition(".")[0],
        "torch",
    ):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno

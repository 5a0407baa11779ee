"""Stands in for the iteration of DataLoaders whose dataset can be kept."""

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
from hotlap.loading.purity.pure_operations import genuine_of
from hotlap.patch.forks import why_no_processes
from hotlap.patch.signals import raised_by_signal
from hotlap.patch.voice import say
from hotlap.runtime.loader_arguments import start_method
from hotlap.runtime.site import Original, Site

if TYPE_CHECKING:
    from hotlap.catalog.resident_data.device_leaves import DeviceLeaves

SHARE_WHEN_ASKED = 0.9  # of the free device memory, where the value "device" was given
MOST_TOLD = 3  # datasets: a training and a validation set, and perhaps a test set
UNDER_TEST = 0.01  # of the time, spent on rows that are fetched the program's own way too
MOST_TO_KEEP, SHARE_TO_KEEP = 3.0, 0.05  # seconds, and of the time of an epoch, that keeping its items may take
LITTLE = 0.1  # of the items: where a loader drops its last batch, as many are never seen in an epoch
MOST_COLLATES = 2  # of a dataset: each has a store


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
        self._told: dict[int, str] = {}
        self._often = RepeatedClasses()

    def forget(self) -> None:
        """Not in a process forked from this one: iterators let go there would end our workers, and what lies on a
        device cannot be freed.
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
            before._reset(loader)
            return before
        if before is None and (is_profiled(self.torch) or is_traced()):
            return original(*args, **kwargs)  # memory and calls of ours would be in the program's profile
        why = unsuited(self.torch, loader) or (why_no_processes() if loader.num_workers else None)
        if why is not None:
            self.site.no_effect(f"{type(loader.dataset).__name__}: {why}")
        with unprofiled(self.torch):
            kept = None if why is not None else self._kept(loader)
        if kept is None or kept.store is None:
            return original(*args, **kwargs)
        return self._iterator(partial(original, *args, **kwargs), loader, kept, kept.store)

    def _is_complete(self, before: Any, loader: Any) -> bool:
        """Whether workers that stay have shown all of it, or all but what is soon fetched here. Till then, and once it
        is kept, no change of the dataset concerns their loader: they have a copy of it from their start.
        """
        from hotlap.catalog.resident_data.iterator import RecordingIterator

        several = self._stores.get(loader.dataset) or []
        store = next((rows.store for rows in several if rows.is_for(loader.collate_fn)), None)
        if type(before) is not RecordingIterator or not before.showing or store is None:
            return False
        if not store.missing:
            return True
        is_little = store.missing * store.seconds <= EAGER and store.missing <= LITTLE
        return is_little and store.watch.changed_at_epoch() is None

    # What is kept

    def _kept(self, loader: Any) -> DatasetRows | None:
        """Ready to be read, or with the reason why not."""
        dataset, collate = loader.dataset, loader.collate_fn
        several = self._stores.get(dataset)
        if several is None:
            if (why := self._often.why_not(type(dataset))) is not None:
                self.site.no_effect(f"{type(dataset).__name__}: {why}")
                return None
            several = []
            self._stores.put(dataset, several)
        kept = next((rows for rows in several if rows.is_for(collate)), None)
        if kept is None and len(several) >= MOST_COLLATES:
            self._give_up(several)
            return None
        self._busy = True
        try:
            if kept is None:
                kept = self._made(dataset, collate, loader)
                several.append(kept)
            elif kept.store is not None:
                self._check(dataset, kept, kept.store, in_workers=loader in self._persistent)
            if kept.store is not None and kept.store.collate is not collate:
                self._renew(kept, kept.store, collate)
            if kept.store is not None and loader.num_workers:
                self._own(kept, kept.store)
            if kept.store is not None and not loader.num_workers:
                self._watch_closely(loader, kept, kept.store)
            if kept.store is not None and kept.store.missing:
                self._fill(loader, kept, kept.store)
            self._count(type(dataset), kept)
        finally:
            self._busy = False
        return kept

    def _made(self, dataset: Any, collate: Any, loader: Any) -> DatasetRows:
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

    def _fill(self, loader: Any, kept: DatasetRows, store: Store) -> None:
        """Only where it is soon done: the program may want a few batches, or its workers be faster."""
        workers = loader.num_workers
        if workers and start_method(loader.multiprocessing_context) != "fork":
            return  # the order of a set of texts, for one, is another in a process that was not forked from this one
        if workers or not self.site.waits():
            self.fill_soon(loader.dataset, kept, store, here=not workers)

    def fill_soon(self, dataset: Any, kept: DatasetRows, store: Store, here: bool) -> None:
        if store.missing * store.seconds > (EAGER if kept.asked or here else AT_FIRST):
            return
        try:
            store.fill(dataset, here=here)
        except Unfit as unfit:
            self._drop(kept, store, str(unfit))

    def _renew(self, kept: DatasetRows, store: Store, collate: Any) -> None:
        """A collate_fn made anew, of the same code: from now on it is this one that counts."""
        try:
            store.use(collate)
        except Unfit as unfit:
            self._drop(kept, store, str(unfit))

    def _own(self, kept: DatasetRows, store: Store) -> None:
        if store.shared is not None and store.bytes > host_memory() * SHARE_OF_MEMORY:
            self._drop(kept, store, f"its workers have a copy of {megabytes(store.bytes)}, for which memory is short")
        else:
            store.own_rows()

    def _give_up(self, several: list[DatasetRows]) -> None:
        """A collate_fn made anew for each epoch would have a store for each."""
        why = f"it is read with more than {MOST_COLLATES} collate_fns, or one made anew each time"
        for rows in several:
            if rows.store is not None:
                self._drop(rows, rows.store, why)

    def _count(self, kind: type, kept: DatasetRows) -> None:
        if not kept.asked:
            self._often.proven(kind)
        elif not kept.again:
            self._often.read_again(kind)
            kept.again = True
        kept.asked = True

    def _check(self, dataset: Any, kept: DatasetRows, store: Store, in_workers: bool) -> None:
        """Workers that stay have a copy from their start; what they share with this process changes for them too."""
        try:
            why = store.changed_elsewhere() if in_workers else store.changed(dataset)
        except Unfit as unfit:
            why = str(unfit)
        if why is not None:
            self._doubt(store, why)
            self._drop(kept, store, why)

    def _watch_closely(self, loader: Any, kept: DatasetRows, store: Store) -> None:
        try:
            find = partial(levels_of, self.torch, loader.dataset) if store.shared is None else None
            store.watch.closely(store.batch_seconds(loader.batch_size or 1), find)
        except Unfit as unfit:
            self._drop(kept, store, str(unfit))

    def _drop(self, kept: DatasetRows, store: Store, why: str) -> None:
        kept.store = None
        if kept.told:
            self.tell(kept, f"{kept.told}; given up later: {why}")
        else:
            self.site.refused(f"{store.name}: {why}")

    def _doubt(self, store: Store, why: str) -> None:
        """What was handed out since all was last compared may have been wrong: that is said at once."""
        if store.unsure:
            before = "the last batch" if store.unsure == 1 else f"the last {store.unsure} batches"
            say(f"resident-data is switched off: {store.name}: {why}; {before} may have been wrong")
            self.site.doubted, store.unsure = True, 0

    # Iterating

    def _iterator(self, original: Original, loader: Any, kept: DatasetRows, store: Store) -> Any:
        from hotlap.catalog.resident_data.iterator import (
            GatheringIterator,
            GatheringIteratorForWorkers,
            RecordingIterator,
            made_by_torch,
        )

        self.site.seams.watch_fetches_of(GatheringIterator)
        before = self._persistent.get(loader)
        left_to_workers = bool(loader.num_workers) and store.missing > 0
        if left_to_workers and start_method(loader.multiprocessing_context) != "fork" and store.forks_only:
            self.site.no_effect(f"{store.name}: its workers are no forks, and its batches do not show what to keep")
            return original()
        failed = partial(self._failed, kept, store)
        self.site.coming |= store.missing > 0
        if not left_to_workers:
            pick = BatchPicker(self, kept, store, loader, self._learning(loader, kept))
            usual = before if before is not None else loader._iterator
            make = partial(
                GatheringIteratorForWorkers if loader.num_workers else GatheringIterator, loader, pick, failed, usual
            )
            iterator = make() if usual is not None else made_by_torch(loader, make)
        elif loader._iterator is not None or not getattr(loader, "in_order", True):
            self.site.no_effect(f"{store.name}: its workers take {store.seconds:.0f} s and hand it out in no order")
            return original()
        else:
            iterator = made_by_torch(loader, partial(RecordingIterator, loader, store, failed))
            self.tell(kept, f"{store.name}: {store.total} items, kept as its workers fetch them the first time")
        if loader.persistent_workers and loader.num_workers:
            self._persistent[loader] = iterator
        return iterator

    def _failed(self, kept: DatasetRows, store: Store, error: Exception) -> None:
        if isinstance(error, Unfit):
            if isinstance(error, DataChanged):
                self._doubt(store, str(error))
            self._drop(kept, store, str(error))
        elif self.site.seams.guard.strict or raised_by_signal(error):
            raise error
        else:
            self.site.withdraw(f"it failed ({type(error).__name__}: {error}) and was taken back")

    def tell(self, kept: DatasetRows, what: str) -> None:
        kept.told = what
        self._told[id(kept)] = what
        self.site.idle = not any(rows.store is not None for several in self._stores.values() for rows in several)
        self.site.applied("; ".join(dict.fromkeys(list(self._told.values())[-MOST_TOLD:])))

    # Devices

    def _learning(self, loader: Any, kept: DatasetRows) -> DeviceLeaves | None:
        """What is known of how this loader's batches are used; a loader made anew on the same line is used alike."""
        if self.site.value == "host" or not self.on_a_device():
            return None
        if loader not in self._learned:
            key = (_place(), type(loader.sampler), loader.batch_size)
            self._learned[loader] = kept.by_place.setdefault(key, new_learning())
        learning: DeviceLeaves = self._learned[loader]
        return learning

    def settle(self, kept: DatasetRows, store: Store, learning: DeviceLeaves) -> None:
        """It is known which leaves go to a device, and all are there: copy them if they fit."""
        wanted, learning.waiting = learning.waiting, {}
        device = next(iter(wanted.values()))
        free = self.device_memory(device)
        share = SHARE_WHEN_ASKED if self.site.value == "device" else SHARE_OF_MEMORY
        needed = store.bytes_for(wanted)
        if needed > free * share:
            self.tell(kept, f"{kept.told}; not on the device: {megabytes(needed)}, {megabytes(free)} free on {device}")
            return
        store.copy_to(wanted)
        learning.devices = wanted
        parts = f"{len(learning.devices)} of {len(store.rows)} tensors of a batch"
        self.tell(kept, f"{store.name}: {store.total} items, {parts} from {megabytes(needed)} on {device}")

    def on_a_device(self) -> bool:
        return bool(self.torch.cuda.is_initialized())

    def device_memory(self, device: Any) -> float:
        return float(self.torch.cuda.mem_get_info(device)[0])


@dataclass
class DatasetRows:
    """Of one dataset as one collate_fn sees it; without a store it could not be kept."""

    collate: Weakly
    store: Store | None
    told: str = ""
    asked: bool = False  # for an epoch
    again: bool = False  # and for another
    read: bool = False  # batches were made from it
    by_place: dict[Any, DeviceLeaves] = field(default_factory=dict)

    def is_for(self, collate: Any) -> bool:
        """The store holds its collate_fn; without one it may be gone."""
        mine = self.collate() if self.store is None else self.store.collate
        return mine is not None and same_function(mine, collate)


class BatchPicker:
    """Makes a batch from the store."""

    def __init__(
        self, keeper: Keeper, kept: DatasetRows, store: Store, loader: Any, learning: DeviceLeaves | None
    ) -> None:
        self._keeper, self._kept, self._store, self._dataset = keeper, kept, store, loader.dataset
        self._learning = learning
        self._ready = False
        self._fills = not loader.num_workers  # once nobody waits any more
        # Workers have a copy of the dataset from the start of the epoch on: they would not see a change of it
        self._live = not loader.num_workers
        self._looks = self._live or store.watch.is_shared
        by_rows = self._live and store.shared is None and store.watch.is_by_rows
        self._levels = levels_of(keeper.torch, loader.dataset) if by_rows else None
        self._untried = 0  # batches since a row of one was last fetched the program's own way too
        self._spent, self._since = 0.0, time.perf_counter()

    def __call__(self, wanted: BatchIndices, pin: bool) -> Any:
        store, learning, began = self._store, self._learning, time.perf_counter()
        if self._looks and (what := self._changed(wanted)) is not None:
            raise DataChanged(f"{what}, which its items are made from, was changed during an epoch")
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
            self._keeper.settle(self._kept, store, learning)
        leaves = store.batch(wanted, learning.devices, pin)
        return store.built(leaves if learning.settled else learning.watch(leaves), wanted, pin)

    def _pay(self, seconds: float) -> None:
        """For keeping what the program fetches by itself: it gains nothing before the next epoch, if there is one."""
        store = self._store
        store.paid += seconds
        if store.paid > MOST_TO_KEEP + SHARE_TO_KEEP * (time.perf_counter() - self._since) and store.spoiled is None:
            store.spoiled = f"to keep what the first epoch fetches has taken {store.paid:.1f} s, which is too much"

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
        """A batch fetched as the program does: while it is timed as it is, and where rows are missing."""
        store, waits = self._store, self._live and self._keeper.site.waits()
        if waits and not store.missing:
            return store.collate(fetch(self._dataset, wanted.indices.tolist()))
        if self._fills and not waits:
            self._fills = False
            if store.missing:
                self._keeper.fill_soon(self._dataset, self._kept, store, here=True)
        return store.fetched(self._dataset, wanted.indices.tolist()) if store.missing else None

    def _try_one(self, wanted: BatchIndices) -> None:
        """A row of this batch fetched the program's own way too, as often as a hundredth of the time allows."""
        now = time.perf_counter()
        self._untried += 1
        if self._spent > UNDER_TEST * (now - self._since):
            return
        row = int(wanted.indices[self._store.random.randrange(len(wanted.indices))])
        if not self._store.is_row(self._dataset, row):
            self._store.unsure = max(self._untried, self._store.unsure)
            raise DataChanged(f"item {row}, fetched as the program does, is not what was kept")
        self._untried = 0
        self._spent += time.perf_counter() - now

    def _begin(self) -> None:
        self._ready = True
        store = self._store
        if not self._kept.read:
            self._kept.read = True
            where = "read where it is" if store.shared is not None else f"{megabytes(store.bytes)} in host memory"
            self._keeper.tell(self._kept, f"{store.name}: {store.total} items, {where}")


def new_learning() -> DeviceLeaves:
    from hotlap.catalog.resident_data.device_leaves import DeviceLeaves

    return DeviceLeaves()


def unsuited(torch: Any, loader: Any) -> str | None:
    """Why a loader is left alone without looking at its data."""
    data, kind = torch.utils.data, type(loader.dataset)  # not by isinstance: it may ask the dataset for its class
    if issubclass(kind, data.IterableDataset):
        return "it is a stream"
    if issubclass(kind, data.datapipes.datapipe.MapDataPipe):
        return "it is a data pipe"
    if not loader._auto_collation:
        return "its sampler or dataset makes whole batches already"
    usual = (data._utils.fetch._MapDatasetFetcher.fetch, data.DataLoader._get_iterator)
    if not all(genuine_of("torch", function) for function in usual):
        return "the program has changed how torch fetches"
    if type(loader)._get_iterator is not data.DataLoader._get_iterator:
        return f"{type(loader).__name__} iterates in its own way"
    if data.get_worker_info() is not None:
        return "it is read in a worker"
    if loader.num_workers and loader.worker_init_fn is not None:
        return "its workers are set up by a worker_init_fn, which would not run"
    return None


def _place() -> tuple[str, int]:
    """The line that iterates, outside torch and hotlap."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in (
        __name__.partition(".")[0],
        "torch",
    ):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno

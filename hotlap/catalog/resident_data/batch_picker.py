"""Makes batches from the rows of a dataset that are kept in memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hotlap.catalog.resident_data.caches import Caches, DatasetRows
from hotlap.catalog.resident_data.rows import BatchIndices
from hotlap.catalog.resident_data.store import Store, megabytes
from hotlap.loading.pure import fetch, levels_of
from hotlap.loading.unsuited import DataChanged, Unfit

if TYPE_CHECKING:
    from hotlap.catalog.resident_data.device_leaves import DeviceLeaves

UNDER_TEST = 0.01  # of the time, spent on fetching rows the program's own way as well, to compare them
MOST_TO_KEEP, SHARE_TO_KEEP = 3.0, 0.05  # seconds plus a share of the epoch that caching its items may take


class BatchPicker:
    """Makes batches from the store."""

    def __init__(
        self, caches: Caches, cache: DatasetRows, store: Store, loader: Any, learning: DeviceLeaves | None
    ) -> None:
        self._caches, self._cache, self._store, self._dataset = caches, cache, store, loader.dataset
        self._learning = learning
        self._ready = False
        self._fills = not loader.num_workers  # once the entry no longer has to wait
        # Workers copy the dataset when the epoch starts and would not see it change
        self._live = not loader.num_workers
        self._looks = self._live or store.watch.is_shared
        by_rows = self._live and store.shared is None and store.watch.is_by_rows
        self._levels = levels_of(caches.torch, loader.dataset) if by_rows else None
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
            return self._caches.torch.utils.data._utils.pin_memory.pin_memory(batch) if pin else batch
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
            self._caches.settle(self._cache, store, learning)
        leaves = store.batch(wanted, learning.devices, pin)
        return store.built(leaves if learning.settled else learning.watch(leaves), wanted, pin)

    def is_current(self) -> bool:
        """Return whether the store still gives what persistent workers would, checked at the start of an epoch."""
        cache, store = self._cache, self._store
        if cache.store is store and store.watch.is_shared:
            self._caches.check(self._dataset, cache, store, in_workers=True)
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
        store, waits = self._store, self._live and self._caches.site.waits()
        if waits and not store.missing:
            return store.collate(fetch(self._dataset, wanted.indices.tolist()))
        if self._fills and not waits:
            self._fills = False
            if store.missing:
                self._caches.fill_soon(self._dataset, self._cache, store, here=True)
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
            self._caches.report(self._cache, f"{store.name}: {store.total} items, {where}")

"""Gives iterators that load in this process a fetcher that caches samples."""

from __future__ import annotations

import os
import random
import time
import weakref
from typing import Any

from hotlap.catalog.resident_data.store import SHARE_OF_MEMORY, host_memory, megabytes
from hotlap.loading.copies import copied, faithful_copy
from hotlap.loading.files import read_files
from hotlap.loading.identity import AlsoOfLists
from hotlap.loading.outside_profiles import is_profiled, unprofiled
from hotlap.loading.pure import Pure, RepeatedClasses, fetch, is_traced, length_of, levels_of, pure, visit
from hotlap.loading.samples import same
from hotlap.loading.unsuited import Unfit, unsuited
from hotlap.loading.weight import leaves_of, size_of, weight_of
from hotlap.patch.signals import comes_from_outside
from hotlap.patch.voice import say
from hotlap.runtime.site import Original, Site

WORTH_KEEPING = 20.0  # microseconds to fetch a sample: a cheaper one is not fetched faster from a cache
CHEAP_COPY = 0.4  # of the time to fetch it: a cached sample is copied once more when it is first fetched
CHECKED = 3  # samples, at the start of each epoch
UNDER_TEST = 0.01  # of the time, spent on fetching samples the program's own way as well, to compare them


def apply(site: Site) -> None:
    keeper = Keeper(site)
    site.no_effect("there was no loader left for it")  # resident-data took them all, or none was iterated
    site.stand_in(site.seams.iterating, keeper.iterate)
    site.ledger.later(keeper.forget)


class Keeper:
    def __init__(self, site: Site) -> None:
        self._site, self._torch = site, site.torch
        self._home = os.getpid()
        self._busy = False  # a dataset may read a loader of its own
        self._caches: AlsoOfLists[Cache | None] = AlsoOfLists()
        self._refused: AlsoOfLists[bool] = AlsoOfLists()
        self._often = RepeatedClasses()
        self._fetchers: weakref.WeakSet[CachingFetcher] = weakref.WeakSet()

    def forget(self) -> None:
        """Drop all caches; epochs under way continue without them."""
        for fetcher in list(self._fetchers):
            fetcher.cache = None
        self._caches.clear()

    def iterate(self, original: Original, loader: Any, args: Any, kwargs: Any) -> Any:
        if self._busy or os.getpid() != self._home or is_profiled(self._torch):
            return original(*args, **kwargs)
        name = type(loader.dataset).__name__
        why = unsuited(self._torch, loader)
        if why is None and loader.num_workers:
            why = "each of its workers would need its own cache"
        if why is not None:
            self._site.no_effect(f"{name}: {why}")
            return original(*args, **kwargs)
        self._busy = True
        try:
            with unprofiled(self._torch):
                cache = self._cache(loader.dataset, name)
        finally:
            self._busy = False
        iterator = original(*args, **kwargs)
        return iterator if cache is None else self._with(iterator, cache, name)

    def _with(self, iterator: Any, cache: Cache, name: str) -> Any:
        data = self._torch.utils.data
        if type(getattr(iterator, "_dataset_fetcher", None)) is data._utils.fetch._MapDatasetFetcher:
            iterator._dataset_fetcher = fetcher = CachingFetcher(iterator._dataset_fetcher, cache)
            self._fetchers.add(fetcher)
            self._site.applied(
                f"{name}: {cache.total} samples, up to {megabytes(cache.limit)}, cached as they are fetched"
            )
        return iterator

    def _cache(self, dataset: Any, name: str) -> Cache | None:
        if self._refused.get(dataset):
            return None
        cache = self._caches.get(dataset)
        try:
            if cache is None:
                if (why := self._often.why_not(type(dataset))) is not None:
                    self._site.no_effect(f"{name}: {why}")
                    return None
                cache = self._made(dataset, name)
                self._often.proven(type(dataset))
            else:
                if not cache.again:
                    self._often.read_again(type(dataset))
                cache.again = True
                cache.check(dataset)
        except Unfit as unfit:
            cache = None
            self._refused.put(dataset, True)
            self._site.refused(f"{name}: {unfit}")
        if cache is not None:
            self._caches.put(dataset, cache)
        return cache

    def _made(self, dataset: Any, name: str) -> Cache | None:
        known = pure(dataset)
        if not known.study.result.deep:
            raise Unfit("its samples may share memory with the dataset, so the program could write into it")
        weight = weight_of(self._torch, dataset, known)
        if weight.item_us < WORTH_KEEPING:
            self._refused.put(dataset, True)
            self._site.no_effect(f"{name}: a sample takes only {weight.item_us:.0f} µs to fetch")
            return None
        copy_us = self._copy_time(visit(dataset, [0])[0])
        if copy_us > weight.item_us * CHEAP_COPY:
            self._refused.put(dataset, True)
            self._site.no_effect(
                f"{name}: a sample takes {weight.item_us:.0f} µs to fetch and {copy_us:.0f} µs to copy"
            )
            return None
        needed, limit = length_of(dataset) * weight.item_bytes, host_memory() * SHARE_OF_MEMORY
        if needed > limit:
            raise Unfit(
                f"its samples take about {megabytes(needed)}, and only {megabytes(limit)} of memory may be used"
            )
        return Cache(self._torch, dataset, known, limit, weight.item_us)

    def _copy_time(self, sample: Any) -> float:
        """Return the microseconds to copy a sample: the minimum of three, since other load only adds to it."""
        seconds = float("inf")
        for _ in range(3):
            began = time.perf_counter()
            copied(self._torch, sample)
            seconds = min(seconds, time.perf_counter() - began)
        return seconds * 1e6


class Cache:
    """The cached samples of one dataset. It holds no reference to the dataset, which therefore can be freed."""

    def __init__(self, torch: Any, dataset: Any, known: Pure, limit: float, item_us: float) -> None:
        self.torch, self.total, self.limit = torch, length_of(dataset), limit
        self._watch = known.watch(torch)
        self._levels = levels_of(torch, dataset)
        self._watch.closely(item_us * 1e-6, lambda: self._levels)
        self._watch.require_worth(item_us * 1e-6 * self.total)
        self._samples: dict[int, Any] = {}
        self._bytes = 0
        self._random = random.Random(os.urandom(8))
        self._spent, self._since = 0.0, time.perf_counter()
        self.spoiled: str | None = None
        self.again = False  # read for a second epoch

    def get(self, dataset: Any, keys: list[int]) -> list[Any]:
        """Return samples that the caller may modify. If one is missing, all are fetched the program's own way."""
        if is_traced():
            return fetch(dataset, keys)
        if (what := self._watch.changed_now() or self._changed_in(keys)) is not None:
            self._spoil(f"{what}, from which its samples are made, changed during an epoch")
        if self.spoiled is None and all(key in self._samples for key in keys):
            self._try_one(dataset, self._random.choice(keys))
        if self.spoiled is None and all(key in self._samples for key in keys):
            return [copied(self.torch, self._samples[key]) for key in keys]
        with read_files() as opened:
            samples = fetch(dataset, keys)
        try:
            self._watch.require_watched(opened)
        except Unfit as unfit:
            self._spoil(str(unfit))
        for key, sample in zip(keys, samples, strict=True):
            self._keep(key, sample)
        return samples

    def watches(self, keys: list[int]) -> bool:
        """Return whether changes to these samples show: by rows, only those of row numbers do."""
        return not self._watch.is_by_rows or (min(keys) >= 0 and max(keys) < self.total)

    def _changed_in(self, keys: list[int]) -> str | None:
        if not self._watch.is_by_rows:
            return None
        return self._watch.changed_in(self._levels.rows(self.torch.tensor(keys)))

    def _try_one(self, dataset: Any, key: int) -> None:
        """Compare one sample with the program's own fetch, within a hundredth of the time."""
        now = time.perf_counter()
        if self._spent > UNDER_TEST * (now - self._since):
            return
        try:
            alike = same(self.torch, visit(dataset, [key])[0], self._samples[key])
        except Unfit:
            alike = False
        if not alike:
            why = f"sample {key}, fetched the program's own way, differs from the cache; this epoch may have been wrong"
            say(f"sample-cache is disabled: {type(dataset).__name__}: {why}")
            self._spoil(why)
        self._spent += time.perf_counter() - now

    def _keep(self, key: int, sample: Any) -> None:
        if self.spoiled is not None or self._bytes > self.limit or key in self._samples:
            return
        try:
            self._samples[key] = faithful_copy(self.torch, sample)
        except Unfit as unfit:
            self._spoil(str(unfit))
        else:
            self._bytes += sum(map(size_of, leaves_of(sample)))

    def _spoil(self, why: str) -> None:
        self.spoiled = why
        self._samples.clear()

    def check(self, dataset: Any) -> None:
        """Raise Unfit if the dataset has changed; called at the start of an epoch."""
        if self.spoiled is not None:
            raise Unfit(self.spoiled)
        if length_of(dataset) != self.total:
            raise Unfit(f"it had {self.total} samples and now has {length_of(dataset)}")
        if (what := self._watch.changed_at_epoch()) is not None:
            raise Unfit(f"{what}, from which its samples are made, has changed since they were cached")
        known = list(self._samples)
        for key in self._random.sample(known, min(CHECKED, len(known))):
            if not same(self.torch, visit(dataset, [key])[0], self._samples[key]):
                raise Unfit(f"sample {key} has changed since it was cached")


class CachingFetcher:
    """Replaces torch's fetcher."""

    def __init__(self, original: Any, cache: Cache) -> None:
        self._original = original
        self.cache: Cache | None = cache
        self.dataset, self.auto_collation = original.dataset, original.auto_collation
        self.collate_fn, self.drop_last = original.collate_fn, original.drop_last

    def fetch(self, keys: Any) -> Any:
        cache = self.cache
        if cache is not None and cache.spoiled is not None:
            self.cache = cache = None
        usual = type(keys) is list and bool(keys) and all(type(key) is int for key in keys)
        if cache is None or not usual or not cache.watches(keys) or is_profiled(cache.torch):
            return self._original.fetch(keys)
        try:
            samples = cache.get(self.dataset, keys)
        except Exception as error:
            if comes_from_outside(error):
                raise
            return self._original.fetch(keys)  # the program meets the error in torch's own frames
        return self.collate_fn(samples)

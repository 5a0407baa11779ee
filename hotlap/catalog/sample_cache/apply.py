"""Gives iterators that load in this process a fetcher that remembers the samples."""

from __future__ import annotations

import os
import random
import time
import weakref
from typing import Any

from hotlap.catalog.identity import AlsoOfLists
from hotlap.catalog.resident_data.apply import unsuited
from hotlap.catalog.resident_data.contents import But, Contents, Surface
from hotlap.catalog.resident_data.identity import Often
from hotlap.catalog.resident_data.names import Names
from hotlap.catalog.resident_data.noted import hearing
from hotlap.catalog.resident_data.proof import fetch, length_of, prove, unchanged, visit
from hotlap.catalog.resident_data.sameness import Unfit, same
from hotlap.catalog.resident_data.store import SHARE_OF_MEMORY, host_memory, megabytes
from hotlap.catalog.resident_data.streams import Streams
from hotlap.catalog.sample_cache.copies import copied, size_of
from hotlap.catalog.silence import silenced
from hotlap.catalog.site import Original, Site

WORTH_KEEPING = 20e-6  # seconds to fetch a sample: a cheaper one is not fetched faster from a cache
CHEAP_COPY = 0.4  # of the time to fetch it: a kept sample is copied once more while it is first fetched
CHECKED = 3  # samples, at the start of each epoch


def apply(site: Site) -> None:
    keeper = Keeper(site)
    site.no_effect("no loader was left to it")  # resident-data took them all, or none was iterated
    site.stand_in(site.seams.iterating, keeper.iterate)
    site.ledger.later(keeper.forget)


class Keeper:
    def __init__(self, site: Site) -> None:
        self._site, self._torch = site, site.torch
        self._home = os.getpid()
        self._busy = False  # a dataset may read a loader of its own
        self._caches: AlsoOfLists[Cache | None] = AlsoOfLists()
        self._refused: AlsoOfLists[bool] = AlsoOfLists()
        self._often = Often()
        self._fetchers: weakref.WeakSet[Remembering] = weakref.WeakSet()

    def forget(self) -> None:
        """Epochs under way go on without."""
        for fetcher in list(self._fetchers):
            fetcher.cache = None
        self._caches.clear()

    def iterate(self, original: Original, loader: Any, args: Any, kwargs: Any) -> Any:
        if self._busy or os.getpid() != self._home:
            return original(*args, **kwargs)
        name = type(loader.dataset).__name__
        why = unsuited(self._torch, loader)
        if why is None and loader.num_workers:
            why = "each of its workers would keep samples of its own"
        if why is not None:
            self._site.no_effect(f"{name}: {why}")
            return original(*args, **kwargs)
        self._busy = True
        try:
            cache = self._cache(loader.dataset, name)
        finally:
            self._busy = False
        iterator = original(*args, **kwargs)
        return iterator if cache is None else self._with(iterator, cache, name)

    def _with(self, iterator: Any, cache: Cache, name: str) -> Any:
        data = self._torch.utils.data
        if type(getattr(iterator, "_dataset_fetcher", None)) is data._utils.fetch._MapDatasetFetcher:
            iterator._dataset_fetcher = fetcher = Remembering(iterator._dataset_fetcher, cache)
            self._fetchers.add(fetcher)
            self._site.applied(f"{name}: {cache.total} samples, up to {megabytes(cache.limit)}, as they are fetched")
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
        proof = prove(self._torch, dataset)
        if proof.seconds < WORTH_KEEPING:
            self._refused.put(dataset, True)
            self._site.no_effect(f"{name}: a sample takes only {proof.seconds * 1e6:.0f} µs to fetch")
            return None
        samples, copying = self._copies(proof.samples)
        if copying > proof.seconds * CHEAP_COPY:
            self._refused.put(dataset, True)
            took = f"{proof.seconds * 1e6:.0f} µs to fetch, a copy of it {copying * 1e6:.0f} µs"
            self._site.no_effect(f"{name}: a sample takes {took}")
            return None
        needed = length_of(dataset) * sum(size_of(self._torch, one) for one in samples) / len(samples)
        limit = host_memory() * SHARE_OF_MEMORY
        if needed > limit:
            raise Unfit(f"about {megabytes(needed)} of samples, and {megabytes(limit)} of memory may be used")
        return Cache(self._torch, dataset, proof.opened, limit)

    def _copies(self, samples: list[Any]) -> tuple[list[Any], float]:
        """And the seconds for one: the shortest, as of fetching, since other work on the machine only adds to it."""
        copies, seconds = [], float("inf")
        for sample in samples:
            began = time.perf_counter()
            copies.append(copied(self._torch, sample))
            seconds = min(seconds, time.perf_counter() - began)
        return copies, seconds


class Cache:
    """Does not hold the dataset: it lives as long as that."""

    def __init__(self, torch: Any, dataset: Any, opened: But, limit: float) -> None:
        self._torch, self.total, self.limit = torch, length_of(dataset), limit
        self._opened, self._names = opened, Names(dataset)
        self._samples: dict[int, Any] = {}
        self._bytes = 0
        self.spoiled: str | None = None
        self.again = False  # read for a second epoch
        self._contents: Contents | None = self._contents_of(dataset)

    def _contents_of(self, dataset: Any) -> Contents:
        return Contents(self._torch, dataset, self._opened, self._names)

    def surface(self, dataset: Any) -> Surface:
        return Surface(self._torch, dataset, self._opened, self._names)

    def changed_meanwhile(self) -> None:
        self._spoil("something its dataset holds was changed during an epoch")

    def get(self, dataset: Any, keys: list[int]) -> list[Any]:
        """Samples the caller may do anything to. Where one is missing, all are fetched, as the program does."""
        if all(key in self._samples for key in keys):
            return [copied(self._torch, self._samples[key]) for key in keys]
        return self._fetched(dataset, keys)

    def _fetched(self, dataset: Any, keys: list[int]) -> list[Any]:
        streams, surface = Streams(self._torch, dataset), self.surface(dataset)
        with hearing() as heard:
            samples = fetch(dataset, keys)
        if heard.why is not None:
            self._spoil(heard.why)
        if surface.moved():  # a file was opened, say
            self._contents = None
        if (moved := streams.moved()) is not None:
            self._spoil(f"its samples are random: fetching some drew from {moved}")
        for key, sample in zip(keys, samples, strict=True):
            self._keep(key, sample)
        return samples

    def _keep(self, key: int, sample: Any) -> None:
        if self.spoiled is not None or self._bytes > self.limit or key in self._samples:
            return
        try:
            self._samples[key] = copied(self._torch, sample)
        except Unfit as unfit:
            self._spoil(str(unfit))
        else:
            self._bytes += size_of(self._torch, sample)

    def _spoil(self, why: str) -> None:
        self.spoiled = why
        self._samples.clear()

    def check(self, dataset: Any) -> None:
        """At the start of an epoch: raises Unfit if the dataset is no longer what it was."""
        if self.spoiled is not None:
            raise Unfit(self.spoiled)
        if length_of(dataset) != self.total:
            raise Unfit(f"it had {self.total} samples and now has {length_of(dataset)}")
        now = self._contents_of(dataset)
        if self._contents is not None and now.differ(self._contents):
            raise Unfit("something its dataset holds has changed since samples were kept")
        self._contents = now
        known = sorted(self._samples)
        with silenced(), unchanged(self._torch, dataset):
            for key in random.SystemRandom().sample(known, min(CHECKED, len(known))):
                if not same(self._torch, visit(dataset, [key])[0], self._samples[key]):
                    raise Unfit(f"sample {key} has changed since it was kept")


class Remembering:
    """In place of torch's fetcher."""

    def __init__(self, original: Any, cache: Cache) -> None:
        self._original = original
        self.cache: Cache | None = cache
        self.dataset, self.auto_collation = original.dataset, original.auto_collation
        self.collate_fn, self.drop_last = original.collate_fn, original.drop_last
        self._surface = cache.surface(self.dataset)

    def fetch(self, keys: Any) -> Any:
        cache = self.cache
        if cache is not None and self._surface.moved():
            cache.changed_meanwhile()
        if cache is not None and cache.spoiled is not None:
            self.cache = cache = None
        if cache is None or type(keys) is not list or any(type(key) is not int for key in keys):
            return self._original.fetch(keys)
        samples = cache.get(self.dataset, keys)
        self._surface = cache.surface(self.dataset)  # as fetching some of them has left it
        return self.collate_fn(samples)

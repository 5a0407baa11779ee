"""Fetches a batch of in-memory tensors with one index per tensor, instead of item by item.

The loader's iterator gets another fetcher; its sampler, random numbers and order do not change. The first batch of each
epoch is fetched both ways and must be bit-identical.
"""

from __future__ import annotations

import time
import weakref
from typing import Any

from hotlap.catalog.whole_batch_fetch.source import Source, source_of
from hotlap.loading.outside_profiles import is_profiled
from hotlap.loading.pure import is_traced, pure
from hotlap.loading.state import Watch
from hotlap.loading.unsuited import Unfit
from hotlap.patch.signals import comes_from_outside
from hotlap.runtime.decline import EntryDeclined, no_effect
from hotlap.runtime.site import Site

UNDER_TEST = 0.01  # of the time, spent on fetching batches the program's own way as well, to compare them


def apply(site: Site) -> None:
    fetchers: weakref.WeakSet[WholeBatches] = weakref.WeakSet()
    site.after(site.seams.iterating, lambda loader, args, kwargs, iterator: _look(site, loader, iterator, fetchers))
    site.ledger.later(lambda: _stop(fetchers))


def _look(site: Site, loader: Any, iterator: Any, fetchers: weakref.WeakSet[WholeBatches]) -> None:
    """Give a new iterator the fetcher; called at the start of each epoch of each loader."""
    if iterator is None or is_looked_at(site.torch):
        return  # the loader has failed, or the program traces itself
    try:
        check(site.torch, loader, iterator)
        source = source_of(site.torch, loader.dataset)
        watch = pure(loader.dataset).watch(site.torch, contents=False)
    except EntryDeclined as declined:
        site.decline(declined)
        return
    except Unfit as why:
        site.refused(f"{type(loader.dataset).__name__}: {why}")
        return
    fetcher = WholeBatches(site, iterator._dataset_fetcher, source, watch, type(loader.dataset))
    iterator._dataset_fetcher = fetcher
    fetchers.add(fetcher)


def check(torch: Any, loader: Any, iterator: Any) -> None:
    data = torch.utils.data
    name = type(loader.dataset).__name__
    if loader.num_workers:
        raise no_effect(f"{name} is loaded by workers, which run unchanged")
    if type(iterator) is not data.dataloader._SingleProcessDataLoaderIter:
        raise no_effect(f"{name} is already read in another way")
    if type(iterator._dataset_fetcher) is not data._utils.fetch._MapDatasetFetcher or not iterator._auto_collation:
        raise no_effect(f"the batches of {name} are not made from items")
    collate = data._utils.collate
    ours = collate.default_collate_fn_map.get(torch.Tensor) is collate.collate_tensor_fn
    if loader.collate_fn is not collate.default_collate or not ours:
        raise no_effect(f"the batches of {name} are made by a custom collate_fn")


def _stop(fetchers: weakref.WeakSet[WholeBatches]) -> None:
    """Make epochs under way continue item by item."""
    for fetcher in list(fetchers):
        fetcher.stop()


def is_looked_at(torch: Any) -> bool:
    """Return whether the program can see which calls are made."""
    return is_profiled(torch) or is_traced()


class WholeBatches:
    """Replaces torch's fetcher. It reads the dataset's tensors at each batch, since the program may change them."""

    def __init__(self, site: Site, original: Any, source: Source, watch: Watch, kind: type) -> None:
        self._site, self._original, self._source, self._watch, self._kind = site, original, source, watch, kind
        self._proven = self._stopped = False
        self._spent, self._since = 0.0, time.perf_counter()
        self.dataset, self.auto_collation = original.dataset, original.auto_collation
        self.collate_fn, self.drop_last = original.collate_fn, original.drop_last

    def stop(self) -> None:
        self._stopped = True

    def fetch(self, keys: Any) -> Any:
        if self._stopped or self._site.waits() or type(keys) is not list or not keys or is_looked_at(self._site.torch):
            return self._original.fetch(keys)
        if self._watch.changed_now() is not None:  # its code or class has changed; changed tensors are simply read
            self._stopped = True
            return self._original.fetch(keys)
        try:
            batch = self._source.batch(keys)
        except Exception as error:  # torch's own way handles unusual keys, or raises
            if comes_from_outside(error):
                raise
            return self._original.fetch(keys)
        began = time.perf_counter()
        if self._proven and self._spent > UNDER_TEST * (began - self._since):
            return batch
        expected = self._compared(keys, batch)
        self._spent += time.perf_counter() - began
        return expected

    def _compared(self, keys: list[Any], batch: Any) -> Any:
        """Return the batch fetched item by item, and stop if it differs.

        Called for the first batch of an epoch, and for others within a hundredth of the time.
        """
        expected = self._original.fetch(keys)
        name = self._kind.__name__
        if not laid_out_the_same(self._site.torch, batch, expected):
            self._stopped = True
            self._site.no_effect(f"a batch of {name} fetched at once differs from one made of its items")
        elif not self._proven:
            self._proven = True
            self._site.applied(f"{name}: one index per tensor for a batch of {len(keys)}")
        return expected


def laid_out_the_same(torch: Any, first: Any, second: Any) -> bool:
    """Return whether two batches are bit-identical and have the same memory layout."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return list(first) == list(second) and all(laid_out_the_same(torch, first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(
            laid_out_the_same(torch, a, b) for a, b in zip(first, second, strict=True)
        )
    alike = (first.dtype, first.shape, first.stride(), first.device) == (
        second.dtype,
        second.shape,
        second.stride(),
        second.device,
    )
    if not alike or first.requires_grad or second.requires_grad:
        return False
    bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (first, second)]
    return bool(torch.equal(*bits))

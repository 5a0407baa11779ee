"""Fetches a batch of in-memory tensors by one index each, instead of item by item.

The loader's iterator gets another fetcher; its sampler, its random numbers and its order are its own. The first batch
of each epoch is fetched both ways and must be the same bit by bit.
"""

from __future__ import annotations

import time
import weakref
from typing import Any

from hotlap.catalog.whole_batch_fetch.source import Source, source_of
from hotlap.loading.outside_profiles import is_profiled
from hotlap.loading.pure import Unfit, Watch, is_traced, pure
from hotlap.runtime.decline import EntryDeclined, no_effect
from hotlap.runtime.site import Site

UNDER_TEST = 0.01  # of the time, spent on batches that are fetched the program's own way too


def apply(site: Site) -> None:
    fetchers: weakref.WeakSet[WholeBatches] = weakref.WeakSet()
    site.after(site.seams.iterating, lambda loader, args, kwargs, iterator: _look(site, loader, iterator, fetchers))
    site.ledger.later(lambda: _stop(fetchers))


def _look(site: Site, loader: Any, iterator: Any, fetchers: weakref.WeakSet[WholeBatches]) -> None:
    """At the begin of each epoch of each loader; iterators are never kept or saved."""
    if iterator is None or is_profiled(site.torch):
        return  # the loader's own error is under way, or the program's own profile
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
        raise no_effect(f"{name} is loaded by workers, which are left alone")
    if type(iterator) is not data.dataloader._SingleProcessDataLoaderIter:
        raise no_effect(f"{name} is read in another way already")
    if type(iterator._dataset_fetcher) is not data._utils.fetch._MapDatasetFetcher or not iterator._auto_collation:
        raise no_effect(f"{name} is not put together from items")
    collate = data._utils.collate
    ours = collate.default_collate_fn_map.get(torch.Tensor) is collate.collate_tensor_fn
    if loader.collate_fn is not collate.default_collate or not ours:
        raise no_effect(f"the batches of {name} are put together by a function of the program's own")


def _stop(fetchers: weakref.WeakSet[WholeBatches]) -> None:
    """Epochs under way go on item by item."""
    for fetcher in list(fetchers):
        fetcher.stop()


def is_looked_at(torch: Any) -> bool:
    """Whether the program sees which calls are made."""
    return is_profiled(torch) or is_traced()


class WholeBatches:
    """In place of torch's fetcher. It reads the dataset's tensors at each batch: the program may change them."""

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
        if self._watch.changed_now() is not None:  # its code, or what it is: the tensors are read as they are
            self._stopped = True
            return self._original.fetch(keys)
        try:
            batch = self._source.batch(keys)
        except Exception:  # noqa: BLE001 whatever is unusual about these keys, torch's own way says or does it
            return self._original.fetch(keys)
        began = time.perf_counter()
        if self._proven and self._spent > UNDER_TEST * (began - self._since):
            return batch
        expected = self._compared(keys, batch)
        self._spent += time.perf_counter() - began
        return expected

    def _compared(self, keys: list[Any], batch: Any) -> Any:
        """The first batch of an epoch, and others as often as a hundredth of the time allows."""
        expected = self._original.fetch(keys)
        name = self._kind.__name__
        if not same(self._site.torch, batch, expected):
            self._stopped = True
            self._site.no_effect(f"a whole batch of {name} is not what its items make")
        elif not self._proven:
            self._proven = True
            self._site.applied(f"{name}: one index per tensor for a batch of {len(keys)}")
        return expected


def same(torch: Any, one: Any, other: Any) -> bool:
    """Bit by bit, and laid out in memory the same way."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(torch, one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(same(torch, a, b) for a, b in zip(one, other, strict=True))
    alike = (one.dtype, one.shape, one.stride(), one.device) == (other.dtype, other.shape, other.stride(), other.device)
    if not alike or one.requires_grad or other.requires_grad:
        return False
    bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return bool(torch.equal(*bits))

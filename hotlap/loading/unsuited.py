"""Which DataLoaders and datasets are left alone."""

from __future__ import annotations

import inspect
from typing import Any

from hotlap.loading.purity.genuine import genuine_of


class Unfit(Exception):
    """Raised with the reason why a loader's data can only be fetched as the program does."""


class DataChanged(Unfit):
    """Raised if what the data is made from has changed."""


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
    if loader.num_workers and not (loader.num_workers > 0 and (loader.prefetch_factor or 0) > 0):
        return "torch cannot start workers with its num_workers and prefetch_factor"
    if loader.num_workers and loader.worker_init_fn is not None:
        return "its worker_init_fn would not run"
    if loader.num_workers and not is_sampler_lazy(loader):
        return "its sampler may change the dataset before workers start"
    return None


def is_sampler_lazy(loader: Any) -> bool:
    """Return whether iterating over the sampler runs none of its code yet, as with torch's own.

    Torch does that more than once, and before workers start: other samplers could count it, change the dataset, or
    raise.
    """
    return inspect.isgeneratorfunction(type(loader._index_sampler).__iter__)

"""Tracks the program's DataLoaders: their settings, what they yield, and which of them feeds the training."""

from __future__ import annotations

import weakref
from typing import Any

from hotlap.observe.frames import place_of_function
from hotlap.records.observation import Loader

GRAPHS = {"torch_geometric": "num_graphs", "dgl": "batch_size"}  # what holds the number of graphs in a batch
SPARSE = ("torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc")
TRAIN, EVALUATION, UNKNOWN = "train", "evaluation", "unknown"


class LoaderCounts:
    """The counts of one DataLoader."""

    def __init__(self, loader: Any) -> None:
        self.role = UNKNOWN
        self.batches = 0
        self.samples = 0
        self.predictable = _samples_per_epoch(loader) is not None
        self._per_epoch = _samples_per_epoch(loader) or 0
        self._loader = weakref.ref(loader)
        self._record = self._describe(loader)

    def expected_size(self, batches: int) -> int:
        """Return the size of the next batch from the batch size and the sampler's length; 0 after the last."""
        size = self._record.batch_size or 0
        left = self._per_epoch - batches * size
        return 0 if self._record.drop_last and left < size else max(0, min(size, left))

    def record(self) -> Loader:
        from dataclasses import replace

        return replace(self._record, role=self.role, batches=self.batches)

    @staticmethod
    def _describe(loader: Any) -> Loader:
        from torch.utils.data import (
            IterableDataset,
        )  # torch checks this class as well; such a dataset inherits a __getitem__ too

        dataset = loader.dataset
        iterable = isinstance(dataset, IterableDataset)
        context = getattr(loader, "multiprocessing_context", None)
        return Loader(
            role=UNKNOWN,
            dataset=type(dataset).__name__,
            dataset_kind="iterable" if iterable else "map",
            dataset_place=_dataset_place(dataset, iterable),
            length=_length(dataset),
            batch_size=_batch_size(loader),
            workers=int(loader.num_workers),
            prefetch=loader.prefetch_factor if loader.num_workers else None,
            pin_memory=bool(loader.pin_memory),
            persistent_workers=bool(loader.persistent_workers),
            drop_last=bool(loader.drop_last),
            sampler="none" if iterable else type(loader.sampler).__name__,
            start_method=context.get_start_method() if context is not None else None,
            batches=0,
        )


class _LoaderPass:
    """One pass over a loader. Several may run at once, as in zip(loader, loader), and each counts its own batches."""

    __slots__ = ("batches", "may_train", "seen")

    def __init__(self, seen: LoaderCounts, may_train: bool) -> None:
        self.seen = seen
        self.may_train = may_train
        self.batches = 0

    def expected_size(self) -> int:
        return self.seen.expected_size(self.batches)

    def size_of(self, found: int) -> int:
        """Return the number of samples that the sampler gave, else those found in the batch: graphs and texts show the
        number of their nodes and words.
        """
        expected = self.expected_size() if self.seen.predictable else 0
        self.seen.predictable = expected > 0
        return expected or found

    def count(self, size: int) -> None:
        self.batches += 1
        self.seen.batches += 1
        self.seen.samples += size


class Loaders:
    """All DataLoaders seen. Iterators are known by id, because holding one would keep its workers alive."""

    def __init__(self) -> None:
        self.seen: list[LoaderCounts] = []
        self._by_loader: weakref.WeakKeyDictionary[Any, LoaderCounts] = weakref.WeakKeyDictionary()
        self._by_iterator: dict[int, _LoaderPass] = {}
        self._since_step: set[LoaderCounts] = set()
        self._requested: list[int] = []  # active iterators, innermost last: a dataset may read a loader of its own
        self.last: LoaderCounts | None = None
        self.made = 0

    def of_loader(self, loader: Any) -> LoaderCounts:
        if loader not in self._by_loader:
            self._by_loader[loader] = LoaderCounts(loader)
            self.seen.append(self._by_loader[loader])
        return self._by_loader[loader]

    def iterated(self, seen: LoaderCounts, iterator: int, may_train: bool = True) -> None:
        """Note a pass that begins; one that begins under no_grad, as Lightning's sanity check, trains nothing."""
        self._by_iterator[iterator] = _LoaderPass(seen, may_train)  # with persistent workers the same one comes again

    def role_of(self, iterator: int) -> str:
        reading = self._by_iterator.get(iterator)
        return reading.seen.role if reading else UNKNOWN

    def requested(self, iterator: int) -> None:
        self._requested.append(iterator)

    def fetched(self, iterator: int, size: int | None) -> None:
        """Count a batch of `size` samples; None marks the end of an epoch."""
        self._answered()
        reading = self._by_iterator.get(iterator)
        if reading is None or size is None:
            return
        self._count(reading, reading.size_of(size))

    def fetched_as_expected(self) -> None:
        """Count a batch without looking at it, because its loader always yields what its sampler says."""
        reading = self._by_iterator.get(self._answered())
        size = reading.expected_size() if reading else 0
        if reading is not None and size:
            self._count(reading, size)

    def _answered(self) -> int:
        return self._requested.pop() if self._requested else 0

    def _count(self, reading: _LoaderPass, size: int) -> None:
        reading.count(size)
        self.last = reading.seen
        if reading.may_train:
            self._since_step.add(reading.seen)

    def predictable(self) -> bool:
        """Whether all loaders so far yielded what their samplers say, so that batches need not be inspected."""
        return bool(self.seen) and all(seen.predictable for seen in self.seen)

    def stepped(self) -> None:
        """Mark the loaders read since the last optimizer step as feeding the training."""
        for seen in self._since_step:
            if seen.role == UNKNOWN:
                seen.role = TRAIN
        self._since_step.clear()

    def evaluated(self) -> None:
        """Mark the loader that was read last as feeding the evaluation."""
        if self.last is not None and self.last.role == UNKNOWN:
            self.last.role = EVALUATION
        if self.last is not None:
            self._since_step.discard(self.last)

    def counts(self) -> dict[LoaderCounts, tuple[int, int]]:
        return {seen: (seen.batches, seen.samples) for seen in self.seen}


def batch_size_of(batch: Any) -> int:
    """Return how many samples a batch holds: its graphs, or the most common leading dimension of its tensors."""
    if graphs := _graphs_in(batch):
        return graphs
    if type(batch) in (list, tuple) and batch:
        first, last = getattr(batch[0], "shape", None), getattr(batch[-1], "shape", None)
        if first and last and first[0] == last[0]:  # true of nearly all batches
            return int(first[0])
    sizes: dict[int, int] = {}
    _leading(batch, sizes, 0)
    if not sizes:
        return len(batch) if isinstance(batch, list | tuple) else 1
    return max(sizes, key=lambda size: sizes[size])  # the first among equals, because dicts keep their order


def called_with(values: list[Any]) -> int:
    """Return the samples in the arguments of a model, or 0 if they may be a graph, whose rows are nodes."""
    tensors = [value for value in values if getattr(value, "shape", None)]
    graph = any(str(getattr(value, "layout", "")) in SPARSE or _is_edges(value, tensors) for value in tensors)
    return 0 if graph else batch_size_of(values)


def _is_edges(value: Any, tensors: list[Any]) -> bool:
    """Return whether a tensor is a list of edges: two rows of node numbers, beside the nodes."""
    integers = str(getattr(value, "dtype", "")) in ("torch.int64", "torch.int32")
    is_pair_of_rows = len(value.shape) == 2 and int(value.shape[0]) == 2
    return is_pair_of_rows and integers and any(other.shape[0] != 2 for other in tensors)


def _graphs_in(batch: Any) -> int:
    """Return the number of graphs in a batch of PyG or DGL, or of a list that holds one; else 0."""
    for value in batch[:2] if type(batch) in (list, tuple) else (batch,):
        name = GRAPHS.get(type(value).__module__.partition(".")[0])
        count = getattr(value, name, 0) if name is not None else 0
        if isinstance(count, int) and count > 0:
            return count
    return 0


def _leading(value: Any, sizes: dict[int, int], depth: int) -> None:
    if depth > 4 or sum(sizes.values()) > 16:
        return
    shape = getattr(value, "shape", None)
    if shape is not None:
        if len(shape):
            size = int(shape[0])
            sizes[size] = sizes.get(size, 0) + 1
        return
    if isinstance(value, dict) or hasattr(value, "keys"):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            _leading(item, sizes, depth + 1)


def _dataset_place(dataset: Any, iterable: bool) -> Any:
    inner = dataset
    while not iterable and hasattr(inner, "dataset") and type(inner).__module__.startswith("torch.utils.data"):
        inner = inner.dataset  # a Subset itself is never what is slow
    return place_of_function(getattr(type(inner), "__iter__" if iterable else "__getitem__", None))


def _samples_per_epoch(loader: Any) -> int | None:
    """Return the samples per epoch for a plain batch size over a sampler with a length; else None."""
    if loader.batch_size is None or type(loader.batch_sampler).__name__ != "BatchSampler":
        return None
    return _length(loader.sampler)


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _batch_size(loader: Any) -> int | None:
    size = loader.batch_size
    if size is None:
        size = getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else None

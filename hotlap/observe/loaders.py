"""DataLoaders as the program made them, what they yield, and which of them feeds the training."""

from __future__ import annotations

import weakref
from typing import Any

from hotlap.observe.frames import place_of_function
from hotlap.records.observation import Loader

TRAIN, EVALUATION, UNKNOWN = "train", "evaluation", "unknown"


class LoaderCounts:
    """One DataLoader and what was counted on it."""

    def __init__(self, loader: Any) -> None:
        self.role = UNKNOWN
        self.batches = 0
        self.samples = 0
        self.predictable = _samples_per_epoch(loader) is not None
        self._per_epoch = _samples_per_epoch(loader) or 0
        self._loader = weakref.ref(loader)
        self._record = self._describe(loader)

    def foretold(self, batches: int) -> int:
        """The size of the batch after so many, by batch size and length of the sampler; 0 after the last."""
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
        )  # what torch itself asks; such a dataset inherits a __getitem__ too

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
    """One pass over a loader. Several may be under way at once, as in zip(loader, loader): each counts its own."""

    __slots__ = ("batches", "seen")

    def __init__(self, seen: LoaderCounts) -> None:
        self.seen = seen
        self.batches = 0

    def foretold(self) -> int:
        return self.seen.foretold(self.batches)

    def check(self, size: int) -> None:
        self.seen.predictable = self.seen.predictable and size == self.foretold()

    def count(self, size: int) -> None:
        self.batches += 1
        self.seen.batches += 1
        self.seen.samples += size


class Loaders:
    """Iterators are known by id: holding one would keep its workers alive."""

    def __init__(self) -> None:
        self.seen: list[LoaderCounts] = []
        self._by_loader: weakref.WeakKeyDictionary[Any, LoaderCounts] = weakref.WeakKeyDictionary()
        self._by_iterator: dict[int, _LoaderPass] = {}
        self._since_step: set[LoaderCounts] = set()
        self._asked: list[int] = []  # iterators under way, innermost last: a dataset may read a loader of its own
        self.last: LoaderCounts | None = None
        self.made = 0

    def of_loader(self, loader: Any) -> LoaderCounts:
        if loader not in self._by_loader:
            self._by_loader[loader] = LoaderCounts(loader)
            self.seen.append(self._by_loader[loader])
        return self._by_loader[loader]

    def iterated(self, seen: LoaderCounts, iterator: int) -> None:
        self._by_iterator[iterator] = _LoaderPass(seen)  # also where workers persist and the iterator is the same again

    def role_of(self, iterator: int) -> str:
        reading = self._by_iterator.get(iterator)
        return reading.seen.role if reading else UNKNOWN

    def asked(self, iterator: int) -> None:
        self._asked.append(iterator)

    def fetched(self, iterator: int, size: int | None) -> None:
        """A batch of so many samples, or None at the end of an epoch."""
        self._answered()
        reading = self._by_iterator.get(iterator)
        if reading is None or size is None:
            return
        reading.check(size)
        self._count(reading, size)

    def fetched_as_foretold(self) -> None:
        """Nobody looked at the batch: its loader always yields what its sampler says."""
        reading = self._by_iterator.get(self._answered())
        size = reading.foretold() if reading else 0
        if reading is not None and size:
            self._count(reading, size)

    def _answered(self) -> int:
        return self._asked.pop() if self._asked else 0

    def _count(self, reading: _LoaderPass, size: int) -> None:
        reading.count(size)
        self.last = reading.seen
        self._since_step.add(reading.seen)

    def predictable(self) -> bool:
        """Whether all loaders so far yielded what their samplers say, so that batches need not be looked at."""
        return bool(self.seen) and all(seen.predictable for seen in self.seen)

    def stepped(self) -> None:
        """An optimizer stepped: what was fetched since the last step feeds the training."""
        for seen in self._since_step:
            if seen.role == UNKNOWN:
                seen.role = TRAIN
        self._since_step.clear()

    def evaluated(self) -> None:
        """The model was called for evaluation: the loader fetched last feeds that."""
        if self.last is not None and self.last.role == UNKNOWN:
            self.last.role = EVALUATION
        if self.last is not None:
            self._since_step.discard(self.last)

    def counts(self) -> dict[LoaderCounts, tuple[int, int]]:
        return {seen: (seen.batches, seen.samples) for seen in self.seen}


def batch_size_of(batch: Any) -> int:
    """How many samples a batch holds: the commonest leading dimension of its tensors."""
    if type(batch) in (list, tuple) and batch:
        first, last = getattr(batch[0], "shape", None), getattr(batch[-1], "shape", None)
        if first and last and first[0] == last[0]:  # as in nearly all batches
            return int(first[0])
    sizes: dict[int, int] = {}
    _leading(batch, sizes, 0)
    if not sizes:
        return len(batch) if isinstance(batch, list | tuple) else 1
    return max(sizes, key=lambda size: sizes[size])  # the first of equals: dicts keep their order


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
        inner = inner.dataset  # a Subset is not what is slow
    return place_of_function(getattr(type(inner), "__iter__" if iterable else "__getitem__", None))


def _samples_per_epoch(loader: Any) -> int | None:
    """Known for a plain batch size over a sampler with a length; then batches hold what they should."""
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

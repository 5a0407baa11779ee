"""DataLoaders as the program made them, what they yield, and which of them feeds the training."""

from __future__ import annotations

import weakref
from typing import Any

from hotlap.model.observation import Loader
from hotlap.observe.frames import place_of_function

TRAIN, EVALUATION, UNKNOWN = "train", "evaluation", "unknown"


class Seen:
    """One DataLoader and what was counted on it."""

    def __init__(self, loader: Any) -> None:
        self.role = UNKNOWN
        self.batches = 0
        self.samples = 0
        self._loader = weakref.ref(loader)
        self._record = self._describe(loader)

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


class Loaders:
    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._by_loader: weakref.WeakKeyDictionary[Any, Seen] = weakref.WeakKeyDictionary()
        self._by_iterator: weakref.WeakKeyDictionary[Any, Seen] = weakref.WeakKeyDictionary()
        self._since_step: set[Seen] = set()
        self.last: Seen | None = None
        self.made = 0

    def iterated(self, loader: Any, iterator: Any) -> None:
        if loader not in self._by_loader:
            self._by_loader[loader] = Seen(loader)
            self.seen.append(self._by_loader[loader])
        if iterator is not None:
            self._by_iterator[iterator] = self._by_loader[loader]

    def of(self, iterator: Any) -> Seen | None:
        return self._by_iterator.get(iterator)

    def role_of_loader(self, loader: Any) -> str:
        seen = self._by_loader.get(loader)
        return seen.role if seen else UNKNOWN

    def fetched(self, iterator: Any, batch: Any) -> None:
        seen = self.of(iterator)
        if seen is None or batch is None:
            return
        seen.batches += 1
        seen.samples += batch_size_of(batch)
        self.last = seen
        self._since_step.add(seen)

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

    def counts(self) -> dict[Seen, tuple[int, int]]:
        return {seen: (seen.batches, seen.samples) for seen in self.seen}


def batch_size_of(batch: Any) -> int:
    """How many samples a batch holds: the commonest leading dimension of its tensors."""
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

"""A DataLoader or a dataset of torch's kind as a source: its rows kept in memory, or fetched as the loader does it.

Rows are fetched, collated and seeded by torch's own loader, in an order that seed and epoch decide: a run is resumed in
the middle of an epoch, and several processes share an epoch, without the loader knowing.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from hotlap.engine.data.errors import DataMismatch
from hotlap.engine.data.iterables import IterableStream, joined, moved, seeded, tensors_in
from hotlap.engine.data.memory import Room, in_words, measured
from hotlap.engine.data.sources import Tensors, require_rows
from hotlap.engine.data.worker_seeds import SeededBatches, WorkerBegins, seed_of_batch
from hotlap.engine.order import epoch_order, seed_of
from hotlap.engine.processes import rank_here
from hotlap.engine.seam import Batch
from hotlap.engine.snapshot import random_states

PROBED_ROWS = 16
PROBE_SECONDS = 1.0  # at most, once four rows are fetched
CPU = torch.device("cpu")

Keep = Literal["auto", True, False]


@dataclass(frozen=True)
class Loader:
    """A DataLoader or dataset with what cannot be seen from it.

    With keep="auto" its rows are kept in memory if they fit, draw no random numbers and are the same when some are
    fetched twice; True keeps and False fetches them in any case. `rows` is how many an epoch has where an iterable does
    not say. `columns` picks and orders the entries of batches that are dicts.
    """

    data: Any
    keep: Keep = "auto"
    rows: int | None = None
    columns: Sequence[str] | None = None


def is_loadable(data: object) -> bool:
    """Return whether torch's DataLoader could fetch this: a loader, a dataset, or anything iterable by rows."""
    if isinstance(data, Loader | DataLoader | IterableDataset):
        return True
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping | str | bytes)


def loader_of(data: Any, batch_size: int, shuffle: bool, drop_last: bool) -> DataLoader[Any]:
    if isinstance(data, DataLoader):
        return data
    if isinstance(data, IterableDataset):
        return DataLoader(data, batch_size, drop_last=drop_last)
    return DataLoader(data, batch_size, shuffle=shuffle, drop_last=drop_last)


class LoaderStream:
    """The rows of a map-style dataset by the sampler of its loader; row numbers are positions in what it chooses.

    A sampler that chooses all rows, or a fixed part of them, is replaced by the engine's order. Any other is drawn from
    anew in each epoch, seeded by seed and epoch. Workers are seeded for each batch, by seed, epoch and its first row.
    """

    narrows = False  # float64 to float32

    def __init__(self, loader: DataLoader[Any], columns: Sequence[str] | None = None) -> None:
        if type(loader.batch_sampler) is not BatchSampler:
            raise DataMismatch(
                f"the DataLoader makes its batches by {type(loader.batch_sampler).__name__}, but steps need batches of "
                "one size; use DataLoader(dataset, batch_size=…, sampler=…)"
            )
        self.loader, self.columns, self.sampler = loader, columns, loader.sampler
        self.batch_size, self.drop_last = loader.batch_size, loader.drop_last
        self.rows = require_rows(len(self.sampler), "the dataset")  # type: ignore[arg-type]
        self.indices = fixed_indices(self.sampler, self.rows)
        self.is_fixed = self.indices is not None
        self.seed = 0
        self._pieces: list[Any] = []
        self._generator = torch.Generator()  # from which torch seeds workers that start: the training's draws nothing
        self._fetcher: DataLoader[Any] | None = None

    def order(self, seed: int, epoch: int) -> Tensor:
        """Return the order of an epoch, as the sampler shuffles or not, and seed the loader's workers by it."""
        self.seed = seed_of(seed, epoch)
        if not self.is_fixed:
            self.indices = self._drawn(epoch)
        if self.is_fixed and not isinstance(self.sampler, SequentialSampler):
            return epoch_order(self.rows, seed, epoch, CPU)
        return torch.arange(self.rows)

    def _drawn(self, epoch: int) -> list[int]:
        set_epoch = getattr(self.sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        with seeded(self.seed):
            generator = getattr(self.sampler, "generator", None)
            if generator is not None:
                generator.manual_seed(self.seed)
            return [int(index) for index in itertools.islice(self.sampler, self.rows)]

    def batches(self, order: Tensor, batch_size: int, device: torch.device, drop_last: bool = False) -> Iterator[Batch]:
        indices = self.indices if self.indices is not None else self._drawn(0)
        pieces = [piece.tolist() for piece in torch.split(order, batch_size)]
        pieces = pieces[:-1] if drop_last and pieces and len(pieces[-1]) < batch_size else pieces
        self._pieces[:] = [[indices[row] for row in piece] for piece in pieces]
        if self.loader.num_workers:
            seeds = [seed_of_batch(self.seed, rank_here(), piece[0]) for piece in pieces if piece]
            self._pieces[:] = zip(seeds, self._pieces, strict=False)
        for batch in iter(self._loader()):
            yield moved(tensors_in(batch, self.columns), device, self.narrows)

    def start(self) -> None:
        """Start the workers while nothing is captured yet: a process forked later would end with the graphs in it."""
        if self.loader.num_workers:
            self._pieces.clear()
            iter(self._loader())

    def _loader(self) -> DataLoader[Any]:
        """Return a loader that fetches like the user's, whose workers live as long as this source."""
        if self._fetcher is None:
            given = self.loader
            with_workers: dict[str, Any] = {}
            if given.num_workers:
                with_workers = {
                    "prefetch_factor": given.prefetch_factor,
                    "persistent_workers": True,
                    "multiprocessing_context": given.multiprocessing_context,
                    "worker_init_fn": WorkerBegins(given.worker_init_fn),
                }
            self._fetcher = DataLoader(
                SeededBatches(given.dataset) if given.num_workers else given.dataset,
                batch_sampler=self._pieces,  # a list that is filled anew for each epoch
                num_workers=given.num_workers,
                collate_fn=given.collate_fn,
                pin_memory=given.pin_memory,
                timeout=given.timeout,
                generator=self._generator.manual_seed(seed_of_batch(self.seed, rank_here())),
                **with_workers,
            )
        return self._fetcher


def fixed_indices(sampler: Any, rows: int) -> Sequence[int] | None:
    """Return the rows that the sampler chooses in every epoch, or None if they change."""
    if type(sampler) is SubsetRandomSampler:
        return [int(index) for index in sampler.indices]
    if type(sampler) is SequentialSampler:
        return range(rows)
    is_whole = type(sampler) is RandomSampler and not sampler.replacement and rows == len(sampler.data_source)
    return range(rows) if is_whole else None


def place(
    given: Loader, loader: DataLoader[Any], passes: int, device: torch.device, narrows: bool = False
) -> tuple[Any, str]:
    """Return a source for so many passes over the rows, and why it is that one."""
    if isinstance(loader.dataset, IterableDataset):
        as_it_comes = IterableStream(loader, given.rows, given.columns)
        as_it_comes.narrows = narrows
        return as_it_comes, "taken as it comes, since it is iterable"
    stream = LoaderStream(loader, given.columns)
    stream.narrows = narrows
    if given.keep is False:
        return stream, "fetched by its loader, as keep=False says"
    if not stream.is_fixed:
        return stream, f"fetched by its loader, since {type(stream.sampler).__name__} chooses other rows in each epoch"
    if given.keep == "auto" and passes < 2:
        return stream, "fetched by its loader, for one pass"
    try:
        found = Probe(stream)
    except Exception as error:
        if given.keep is True or not loader.num_workers:
            raise
        why = f"{type(error).__name__} here" if loader.worker_init_fn is None else "they may need its worker_init_fn"
        return stream, f"fetched by its loader, since rows can be fetched by its workers alone ({why})"
    room = measured(device)
    why_not = None if given.keep is True else found.why_not() or too_large(found.bytes, room)
    if why_not is not None:
        return stream, f"fetched by its loader, since {why_not}"
    started = time.perf_counter()
    source = kept(stream, device)
    size, seconds = in_words(found.bytes), time.perf_counter() - started
    return source, f"kept in the memory of {device} ({size}, fetched in {seconds:.1f} s; {found.words})"


def too_large(needed: int, room: Room) -> str | None:
    if needed <= room.for_device:
        return None
    return f"{in_words(needed)} are too many to keep ({in_words(room.for_device)} may be used)"


class Probe:
    """Some rows fetched twice, with different seeds: how large they are, and whether they are the same each time."""

    def __init__(self, stream: LoaderStream) -> None:
        loader = stream.loader
        self.columns, self.collate = stream.columns, loader.collate_fn
        self.is_plain = type(loader.dataset) is TensorDataset and loader.collate_fn is default_collate
        assert stream.indices is not None
        numbers = np.linspace(0, stream.rows - 1, min(stream.rows, PROBED_ROWS)).astype(int)
        indices = [stream.indices[number] for number in numbers]
        with seeded(1):
            self.items, self.draws = self._fetched(loader.dataset, indices)
        with seeded(2):
            again, _ = self._fetched(loader.dataset, indices[: len(self.items)])
        self.first, self.second = [self._row([item]) for item in self.items], [self._row([item]) for item in again]
        self.bytes = stream.rows * sum(tensor.nbytes for tensor in self.first[0])

    def _fetched(self, dataset: Any, indices: Sequence[int]) -> tuple[list[Any], bool]:
        """Fetch rows until time is up; return whether that drew random numbers."""
        items: list[Any] = []
        before, ends = random_states(), time.perf_counter() + PROBE_SECONDS
        for index in indices:
            items += dataset.__getitems__([index]) if hasattr(dataset, "__getitems__") else [dataset[index]]
            if time.perf_counter() > ends and len(items) >= 4:
                break
        return items, not same_states(before, random_states())

    def _row(self, items: list[Any]) -> Batch:
        return tensors_in(self.collate(items), self.columns)

    @property
    def words(self) -> str:
        if self.is_plain:
            return "they are tensors already"
        return f"{len(self.first)} rows fetched twice were equal and drew no random numbers"

    def why_not(self) -> str | None:
        """Return what speaks against keeping the rows."""
        if self.is_plain:
            return None
        if self.draws:
            return "fetching draws random numbers"
        if not all(same_batch(first, second) for first, second in zip(self.first, self.second, strict=False)):
            return "rows differ when they are fetched twice"
        with seeded(1):
            together = self._row(self.items)
        alone = [[tensor.shape for tensor in row] for row in self.first]
        if any(shapes != alone[0] for shapes in alone) or not same_batch(together, joined(self.first)):
            return "a row depends on the others in its batch"
        return None


def same_batch(first: Batch, second: Batch) -> bool:
    pairs = zip(first, second, strict=False)
    return len(first) == len(second) and all(a.dtype == b.dtype and a.equal(b) for a, b in pairs)


def same_states(first: Any, second: Any) -> bool:
    """Compare the random streams of Python, numpy and torch, however they are nested."""
    if isinstance(first, Tensor | np.ndarray):
        return bool((first == second).all())
    if isinstance(first, Mapping):
        return all(same_states(value, second[name]) for name, value in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same_states, first, second))
    return bool(first == second)


def kept(stream: LoaderStream, device: torch.device) -> Tensors:
    """Fetch all rows once, with the loader's workers, into memory of the device."""
    columns: list[Tensor] = []
    done = 0
    for batch in stream.batches(torch.arange(stream.rows), stream.batch_size or 1, CPU):
        if not columns:
            columns = [torch.empty((stream.rows, *part.shape[1:]), dtype=part.dtype, device=device) for part in batch]
        for column, part in zip(columns, batch, strict=True):
            column[done : done + len(part)] = part
        done += len(batch[0])
    source = Tensors(*columns)
    source.order = stream.order
    return source

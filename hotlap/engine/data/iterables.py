"""Data that decides its order itself: iterable datasets, and what other packages yield. It is taken as it comes.

An epoch takes `rows` rows, in batches of any size: where the data brings others, they are joined and cut.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from hotlap.engine.data.errors import DataMismatch
from hotlap.engine.data.sources import require_rows
from hotlap.engine.order import seed_of
from hotlap.engine.seam import Batch
from hotlap.engine.snapshot import random_states, seed_streams, set_random_states


class IterableStream:
    """The batches of an iterable dataset as they come. It decides its order itself, and `rows` are taken each epoch.

    Several processes each read all of it and keep their part, which needs the same rows in all of them.
    """

    narrows = False  # float64 to float32

    def __init__(self, loader: DataLoader[Any], rows: int | None, columns: Sequence[str] | None = None) -> None:
        self.loader, self.columns, self.seed = begun_anew(loader), columns, 0
        self.batch_size, self.drop_last = loader.batch_size, loader.drop_last
        self.beginning: int | None = None  # a checksum of the first batch that came
        self.rows = require_rows(length_of(loader.dataset) if rows is None else rows, "the dataset")

    def order(self, seed: int, epoch: int) -> Tensor:
        self.seed = seed_of(seed, epoch)
        set_epoch = getattr(self.loader.dataset, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        return torch.arange(self.rows)

    def batches(self, order: Tensor, batch_size: int, device: torch.device, drop_last: bool = False) -> Iterator[Batch]:
        if not len(order):
            return
        with contextlib.closing(self.fetched(batch_size)) as fetched:
            whole = self._noted(tensors_in(batch, self.columns) for batch in fetched)
            if int(order[-1]) - int(order[0]) + 1 == len(order):
                wanted = in_sizes(whole, int(order[0]), sizes_of(len(order), batch_size))
            else:
                wanted = at_places(whole, torch.split(order, batch_size))
            for batch in wanted:
                yield moved(batch, device, self.narrows)

    def _noted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self.beginning = checksum(batch) if self.beginning is None else self.beginning
            yield batch

    def fetched(self, batch_size: int) -> Generator[Any, None, None]:
        """Yield an epoch's batches from its beginning on, of this size or of another."""
        with seeded(self.seed):
            batches = iter(self.loader)
        yield from batches


def begun_anew(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader whose workers start with each epoch, from the seed of that epoch.

    Ones that live on, or are seeded by a generator of the loader, would draw what earlier epochs have left: a resumed
    run would get other rows. They would not see `set_epoch` either.
    """
    if not loader.num_workers or not (loader.persistent_workers or loader.generator):
        return loader
    return DataLoader(
        loader.dataset,
        loader.batch_size,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
    )


def sizes_of(rows: int, batch_size: int) -> list[int]:
    return [min(batch_size, rows - first) for first in range(0, rows, batch_size)]


def in_sizes(batches: Iterator[Batch], skipped: int, sizes: Sequence[int]) -> Iterator[Batch]:
    """Yield batches of these sizes, from the row after `skipped` on, until the batches given end.

    One whose tensors differ in their first dimension, such as sequences laid out by step, is neither joined nor cut.
    """
    held: list[Batch] = []
    for wanted in sizes:
        while sum(map(rows_of, held)) < wanted:
            batch = next(batches, None)
            if batch is None:
                return
            if not is_by_row(batch):
                if skipped:
                    skipped -= sizes[0]
                    continue
                held = [batch]
                break
            left_out = min(skipped, rows_of(batch))
            skipped -= left_out
            held += [tuple(tensor[left_out:] for tensor in batch)] if left_out < rows_of(batch) else []
        whole = joined(held)
        fits = not is_by_row(whole) or rows_of(whole) == wanted
        yield whole if fits else tuple(tensor[:wanted] for tensor in whole)
        held = [] if fits else [tuple(tensor[wanted:] for tensor in whole)]


def at_places(batches: Iterator[Batch], pieces: Sequence[Tensor]) -> Iterator[Batch]:
    """Yield the rows at these places of the stream, which ascend: what lies between them is read and left out.

    Where they begin again at the end, for a batch that only stands in, the last one is repeated.
    """
    waiting: list[Batch] = []
    wanting, first = iter(pieces), 0
    wanted = next(wanting)
    for batch in batches:
        end = first + rows_of(batch)
        while len(wanted) and int(wanted[0]) < end:
            here = wanted[wanted < end]
            waiting.append(chosen(batch, here - first))
            wanted = wanted[len(here) :]
            if not len(wanted):
                complete = joined(waiting)
                yield complete
                waiting, wanted = [], next(wanting, wanted)
                if len(wanted) and wanted[0] <= here[-1]:
                    yield complete
                    return
        if not len(wanted):
            return
        first = end


def chosen(batch: Batch, rows: Tensor) -> Batch:
    """Return rows of a batch without a copy where they lie next to each other."""
    first, last = int(rows[0]), int(rows[-1]) + 1
    if last - first == len(rows):
        return batch if len(rows) == rows_of(batch) else tuple(tensor[first:last] for tensor in batch)
    return tuple(tensor[rows] for tensor in batch)


def joined(parts: Sequence[Batch]) -> Batch:
    return parts[0] if len(parts) == 1 else tuple(torch.cat(columns) for columns in zip(*parts, strict=True))


def checksum(batch: Batch) -> int:
    number = 0
    for tensor in batch:
        number = zlib.crc32(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data, number)
    return number


def rows_of(batch: Batch) -> int:
    return len(batch[0])


def is_by_row(batch: Batch) -> bool:
    return all(len(tensor) == len(batch[0]) for tensor in batch)


def length_of(dataset: Any) -> int:
    try:
        return len(dataset)
    except TypeError as error:
        raise DataMismatch(
            f"{type(dataset).__name__} does not say how many rows it has; "
            "use Loader(data, rows=…) with as many as an epoch should have"
        ) from error


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the random streams within the block; the training's own continue after it as if nothing was drawn."""
    before = random_states()
    seed_streams(seed)
    try:
        yield
    finally:
        set_random_states(before)


def tensors_in(batch: Any, columns: Sequence[str] | None) -> Batch:
    """Return the tensors of a batch in their order, from tuples, lists and dicts."""
    if columns is not None:
        missing = [name for name in columns if not isinstance(batch, Mapping) or name not in batch]
        if missing:
            has = ", ".join(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
            raise DataMismatch(f"a batch has no column {missing[0]!r}; it has: {has}")
        batch = [batch[name] for name in columns]
    return tuple(_leaves(batch, "the batch"))


def _leaves(value: Any, where: str) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        yield torch.from_numpy(value)
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(part, f"its column {name!r}")
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from _leaves(part, f"entry {number} of {where}")
    else:
        raise DataMismatch(
            f"{where} holds {type(value).__name__}, not tensors; leave it out with Loader(data, columns=…), "
            "or make it a number in the dataset or in collate_fn"
        )


def moved(batch: Batch, device: torch.device, narrows: bool = False) -> Batch:
    """Move a batch to the device; with `narrows`, float64 becomes float32 before."""
    return tuple((tensor.float() if narrows and is_wide(tensor) else tensor).to(device, non_blocking=True)
                 for tensor in batch)  # fmt: skip


def is_wide(tensor: Tensor) -> bool:
    return tensor.dtype is torch.float64

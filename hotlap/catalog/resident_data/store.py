"""Stores a dataset as stacked rows, one stack per leaf of a batch, and gathers batches from them."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Any

from hotlap.catalog.resident_data.rows import BatchIndices, Rows, TensorRows, TextRows, rows_for
from hotlap.loading.files import read_files
from hotlap.loading.pure import Pure, fetch, length_of, visit, warnings_raised
from hotlap.loading.purity import Study
from hotlap.loading.purity.genuine import genuine_of
from hotlap.loading.samples import ComparingCollate, Layout, form_of, same, take_apart
from hotlap.loading.state import Watch
from hotlap.loading.unsuited import Unfit
from hotlap.machine import free_bytes, held_bytes, ranks_here
from hotlap.patch.signals import comes_from_outside
from hotlap.patch.voice import say

CHUNK, CHUNK_BYTES = 256, 256 << 20  # items and bytes fetched at once while filling, at most
FIRST = 3  # items fetched to learn the layout of a batch
CHECKED = 3  # rows fetched again at the start of each epoch
SHARE_OF_MEMORY = 0.5
ARRIVING = 5e-4  # seconds that a batch takes at least from its worker to the program
EAGER = 2.0  # seconds: a dataset that takes no longer is fetched at once, otherwise as the epochs go …
AT_FIRST = 0.7  # … and before the first batch of workers: the first step must not come late
SAY_AFTER, SAY_AGAIN = 5.0, 10.0  # seconds, between lines that say how far the items of a dataset are fetched


class Store:
    """The stacked rows of one dataset. It holds no reference to the dataset, which therefore can be freed."""

    forks_only = False  # workers must be forked from this process to send the samples to keep

    def __init__(self, torch: Any, dataset: Any, collate: Any, pure: Pure, *others: Study) -> None:
        """Prepare an empty store. Raises Unfit if the dataset cannot be kept."""
        self.torch, self.collate, self.pure = torch, collate, pure
        self.name = type(dataset).__name__
        self.total = length_of(dataset)
        if self.total == 0:
            raise Unfit("its dataset is empty")
        self.shared = _whole_tensors(torch, dataset, collate)
        self.watch: Watch = pure.watch(torch, *others)
        with pure.handles_closed_after(dataset), torch.inference_mode(False):
            with read_files() as opened:
                samples = self._first_samples(dataset)
            self.watch.require_watched(opened)
            self._form = form_of(samples[0])
            leaves = self._prepared(samples)
            self.bytes = self.total * (self._besides(samples) + sum(_row_bytes(torch, leaf) for leaf in leaves))
            self._require_memory()
            self.rows = self._empty_rows(leaves)
            self._have = torch.full((self.total,), self.shared is not None, dtype=torch.bool, device="cpu")
        self._left = self.total if self.shared is None else 0
        self.spoiled: str | None = None
        self.handed_out = 0  # batches since items were last verified, at the start of an epoch
        self.unsure = 0  # batches that may have been wrong
        self.last_fetched = self.paid = 0.0  # seconds: to fetch the program's last batch, and to cache all of them
        self.on_waited: Callable[[float], None] = lambda seconds: (
            None
        )  # called with the time the program waited for a batch
        self.random = random.Random(os.urandom(8))

    def _first_samples(self, dataset: Any) -> list[Any]:
        """Fetch the first, middle and last item twice, and time the second fetch: the first may open files."""
        rows = list(dict.fromkeys([0, self.total - 1, self.total // 2]))[:FIRST]
        samples, seconds = visit(dataset, rows), math.inf
        with warnings_raised():
            for row, sample in zip(rows, samples, strict=True):
                began = time.perf_counter()
                (again,) = fetch(dataset, [row])
                seconds = min(seconds, time.perf_counter() - began)
                if not same(self.torch, sample, again):
                    raise Unfit(f"item {row} differs each time it is fetched")
        self._fetching, self._collating = seconds, 0.0  # of one item, and of collating these
        self.seconds = 0.0 if _stacked(self.torch, dataset, self.collate) is not None else seconds * self.total
        return samples

    def _prepared(self, samples: list[Any]) -> list[Any]:
        """Return the leaves of a batch of these samples."""
        began = time.perf_counter()
        batch = self._collated(samples)
        self._collating = time.perf_counter() - began
        self.layout, leaves = self._apart(batch, len(samples))
        self._pinned_layout = self.layout.as_pinned()
        return leaves

    def _besides(self, samples: list[Any]) -> int:
        """Return the bytes per sample that are kept in addition to the rows."""
        return 0

    def _empty_rows(self, leaves: list[Any]) -> list[Rows]:
        if self.shared is None:
            return [rows_for(self.torch, leaf, self.total) for leaf in leaves]
        pairs = zip(leaves, self.shared, strict=True)
        return [TensorRows(self.torch, leaf, self.total, base) for leaf, base in pairs]

    # Filling

    def fill(self, dataset: Any, here: bool = False) -> None:
        """Fetch all missing items in this process; `here` means that the program would not have used workers either."""
        torch = self.torch
        whole = _stacked(torch, dataset, self.collate)
        if whole is not None and not any(len(tensor) != self.total for tensor in whole):
            self.put(torch.arange(self.total), whole)  # its memory layout differs from a batch's, so it is copied once
            return
        handles = nullcontext() if here else self.pure.handles_closed_after(dataset)
        with nullcontext() if here else single_threaded(torch), handles, torch.inference_mode(False):
            missing = torch.nonzero(~self._have).reshape(-1)
            progress = Progress(self.name, len(missing))
            for rows in missing.split(self._chunk()):
                with read_files() as opened:
                    samples = visit(dataset, rows.tolist())
                self.watch.require_watched(opened)
                self._examine(rows, samples)
                self.put(rows, self._collated(samples))
                progress.tell(len(rows))
        if (what := self.watch.changed_now()) is not None and here:
            raise Unfit(f"{what}, from which its items are made, changed while they were fetched")

    def _chunk(self) -> int:
        return max(1, min(CHUNK, CHUNK_BYTES * self.total // max(1, self.bytes)))

    def fetched(self, dataset: Any, indices: list[int]) -> Any:
        """Fetch a batch as the program does, row by row and in order, and keep it; None if all its rows are here."""
        rows = self.torch.tensor(indices, device="cpu")
        if self._left == 0 or bool(self._have[rows].all()):
            return None
        began = time.perf_counter()
        with read_files() as opened:
            samples = fetch(dataset, indices)
        batch = self.collate(samples)
        self.last_fetched = time.perf_counter() - began
        self.on_waited(self.last_fetched)
        try:
            self.watch.require_watched(opened)
            self._examine(rows, samples)
            self.put(rows, batch)
        except Unfit as unfit:  # reported with the next batch
            self.spoiled = str(unfit)
        return batch

    @property
    def missing(self) -> float:
        """The share of items not cached yet."""
        return self._left / self.total

    def _examine(self, rows: Any, samples: list[Any]) -> None:
        """Raise Unfit if the samples cannot be stacked."""
        self._require_alike(all(form_of(sample) == self._form for sample in samples))

    def _require_alike(self, are_alike: bool) -> None:
        if not are_alike:
            raise Unfit("its items differ in shape or type, so they cannot be stacked")

    def put(self, rows: Any, batch: Any) -> None:
        """Keep a batch as its collate_fn made it."""
        layout, leaves = self._apart(batch, len(rows))
        if layout != self.layout:
            raise Unfit("its batches differ in their containers")
        with self.torch.inference_mode(False):
            for leaf_rows, leaf in zip(self.rows, leaves, strict=True):
                leaf_rows.put(rows, leaf)
        new = rows[~self._have[rows]].tolist()
        self._left -= len(set(new))
        self._have[rows] = True

    def batch_seconds(self, size: int) -> float:
        """Return how long the program takes at least to make a batch: collating a few items is mostly call overhead."""
        return size * self._fetching + self._collating

    def require_worth(self, loader: Any) -> None:
        """Raise Unfit if checking for changes takes longer than the program takes to make its batches."""
        batches = self.total / (loader.batch_size or 1)
        arriving = ARRIVING * batches if loader.num_workers else 0.0
        self.watch.require_worth(self._fetching * self.total + self._collating * self.total / FIRST + arriving)

    def use(self, collate: Any) -> None:
        """Switch to a new collate_fn with the same code."""
        self.collate = collate

    def own_rows(self) -> None:
        """Copy rows that were read in place: workers have a copy from when they start."""
        if self.shared is not None:
            self.shared = None
            for rows in self.rows:
                assert isinstance(rows, TensorRows)
                rows.own()

    # Batches made by the program's workers

    def collate_in_workers(self) -> Any:
        return ComparingCollate(self.collate, self._form)

    def shown(self, rows: Any, made: Any) -> None:
        """Keep what a worker has made of these rows."""
        batch, are_alike = made
        self._require_alike(are_alike)
        self.put(rows, batch)

    def batch_of(self, made: Any) -> Any:
        return made[0]

    # Reading

    def batch(
        self, wanted: BatchIndices, devices: Mapping[int, Any] = MappingProxyType({}), pin: bool = False
    ) -> list[Any]:
        """Return the leaves of a batch, some on a device; `built` puts them together."""
        return [rows.take(wanted, devices.get(leaf), pin) for leaf, rows in enumerate(self.rows)]

    def built(self, leaves: list[Any], wanted: BatchIndices, pin: bool) -> Any:
        """Return the batch made of these leaves."""
        return (self._pinned_layout if pin else self.layout).build(iter(leaves))

    def bytes_for(self, devices: Mapping[int, Any]) -> int:
        """Return the device memory that copying these leaves would take."""
        tensors = [(self.rows[leaf], device) for leaf, device in devices.items()]
        return sum(rows.bytes_for(device) for rows, device in tensors if isinstance(rows, TensorRows))

    def copy_to(self, devices: Mapping[int, Any]) -> None:
        with self.torch.inference_mode(False):
            for leaf, device in devices.items():
                rows = self.rows[leaf]
                if isinstance(rows, TensorRows):
                    rows.copy_to(device)

    # Checking

    def changed_elsewhere(self) -> str | None:
        """Return why persistent workers need a new store: their copy changes only where processes share memory."""
        what = self.watch.changed_elsewhere(at_epoch=True)
        return None if what is None else f"{what}, from which its items are made, has changed since they were cached"

    def changed(self, dataset: Any) -> str | None:
        """Return how the dataset has changed since it was cached, checked at the start of an epoch."""
        if length_of(dataset) != self.total:
            return f"its dataset had {self.total} items and now has {length_of(dataset)}"
        if self.spoiled is not None:
            return self.spoiled
        what = self.watch.changed_at_epoch()
        if what is not None:
            self.unsure = self.handed_out if self.watch.found_late else 0
            return f"{what}, from which its items are made, has changed since they were cached"
        if self.missing:
            return None
        with self.pure.handles_closed_after(dataset), single_threaded(self.torch), self.torch.inference_mode(False):
            for row in self.random.sample(range(self.total), min(CHECKED, self.total)):
                if not self.is_row(dataset, row):
                    self.unsure = self.handed_out
                    return f"item {row} of its dataset has changed since it was cached"
        self.handed_out = 0
        return None

    def is_row(self, dataset: Any, row: int) -> bool:
        """Return whether an item, fetched the program's own way, equals the cached one."""
        stored = self._kept_item(BatchIndices(self.torch.tensor([row], device="cpu")))
        return same(self.torch, self._item(dataset, row), stored)

    def _kept_item(self, wanted: BatchIndices) -> list[Any]:
        return self.batch(wanted)

    def _item(self, dataset: Any, row: int) -> list[Any]:
        return self._apart(self._collated(visit(dataset, [row])), 1)[1]

    def _collated(self, samples: list[Any]) -> Any:
        try:
            return self.collate(samples)
        except Exception as error:
            if comes_from_outside(error):
                raise
            raise Unfit(f"its samples cannot be stacked ({type(error).__name__}: {error})") from error

    def _apart(self, batch: Any, rows: int) -> tuple[Layout, list[Any]]:
        return take_apart(self.torch, batch, rows)

    def _require_memory(self) -> None:
        free = host_memory() * SHARE_OF_MEMORY
        if self.shared is None and self.bytes > free:
            raise Unfit(f"its data takes {megabytes(self.bytes)}, and only {megabytes(free)} of memory may be used")


class Progress:
    """Prints a line to stderr now and then if fetching takes long."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total, self._done = name, total, 0
        self._next = time.monotonic() + SAY_AFTER

    def tell(self, more: int) -> None:
        self._done += more
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SAY_AGAIN
        share = f"{self._done / self._total:.0%}"
        say(f"resident-data has fetched {share} of the {self._total} items of {self._name}")


@contextmanager
def single_threaded(torch: Any) -> Iterator[None]:
    """Compute as a worker does: a sum over many numbers by several threads has different last digits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _row_bytes(torch: Any, leaf: Any) -> int:
    return TensorRows.row_bytes(leaf) if isinstance(leaf, torch.Tensor) else TextRows.row_bytes(leaf)


def _whole_tensors(torch: Any, dataset: Any, collate: Any) -> list[Any] | None:
    """Return the tensors of a TensorDataset, which is stacked already: they are read in place, without a copy."""
    tensors = _stacked(torch, dataset, collate)
    return tensors if tensors is not None and all(tensor.is_contiguous() for tensor in tensors) else None


def _stacked(torch: Any, dataset: Any, collate: Any) -> list[Any] | None:
    data = torch.utils.data
    if type(dataset) is not data.TensorDataset or collate is not data.default_collate:
        return None
    if not genuine_of("torch", data.TensorDataset.__getitem__) or hasattr(data.TensorDataset, "__getitems__"):
        return None
    tensors = list(dataset.tensors)
    return tensors if all(type(tensor) is torch.Tensor and not tensor.is_inference() for tensor in tensors) else None


def host_memory() -> float:
    """Return the bytes this process may still allocate, shared among ranks and limited by its container."""
    return max(0.0, min(float(free_bytes()), _addresses_left())) / ranks_here()


def _addresses_left() -> float:
    """Return the address space left under `ulimit -v`."""
    try:
        import resource
    except ImportError:  # not on Unix
        return math.inf
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return float(most - held_bytes().addresses) if most != resource.RLIM_INFINITY else math.inf


def megabytes(amount: float) -> str:
    return f"{amount / 1e6:,.1f} MB"

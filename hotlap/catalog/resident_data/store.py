"""A dataset kept as stacked rows, one stack per leaf of a batch, and batches picked from it."""

from __future__ import annotations

import math
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any

from hotlap.catalog.forked import NoAnswer, has_written, in_forks, keep_from_writing, was_heard
from hotlap.catalog.resident_data.contents import Contents, Surface
from hotlap.catalog.resident_data.layout import Layout, take_apart
from hotlap.catalog.resident_data.names import Names
from hotlap.catalog.resident_data.noted import hearing
from hotlap.catalog.resident_data.progress import SAY_AFTER, Progress
from hotlap.catalog.resident_data.proof import Proof, fetch, length_of, refuse, unchanged, visit
from hotlap.catalog.resident_data.rows import Rows, TensorRows, TextRows, Wanted, rows_for
from hotlap.catalog.resident_data.sameness import NotStacked, Unfit, same, signature
from hotlap.catalog.resident_data.streams import RANDOM, Streams
from hotlap.catalog.room import free_bytes, held_bytes
from hotlap.catalog.signals import raised_by_signal
from hotlap.catalog.silence import silenced
from hotlap.model.visible import visible

CHUNK, CHUNK_BYTES = 256, 256 << 20  # fetched at once while filling, at most
WITNESSES = 32  # rows remembered apart, some of which are checked at the start of each epoch
CHECKED = 3
SHARE_OF_MEMORY = 0.5
EAGER, PATIENCE = 2.0, 30.0  # seconds: fetched before the first batch, before later epochs; else as the epoch goes
SLOWER, TO_START = 3.0, 2.0  # times, seconds: forks that take longer are ended
PARTS = 4  # that each process fetches: one that is slower has fewer to end with


class Store:
    """Does not hold the dataset: it lives as long as that."""

    recordable = True  # a batch that workers made shows all there is to keep

    def __init__(self, torch: Any, dataset: Any, collate: Any, proof: Proof) -> None:
        """Proves that the data can be kept, and keeps none of it yet."""
        self.torch, self.collate = torch, collate
        self.name = type(dataset).__name__
        self.total = length_of(dataset)
        self.seconds = 0.0 if _stacked(torch, dataset, collate) is not None else proof.seconds * self.total
        self.opened, self.names = proof.opened, Names(dataset, collate)
        self.signature = signature(torch, proof.samples[0])
        self._streams = Streams(torch, dataset, collate)
        with silenced(), unchanged(torch, dataset, collate, streams=self._streams) as streams:
            leaves = self._prepared(proof)
            self.bytes = self.total * (self._besides(proof) + sum(_row_bytes(torch, leaf) for leaf in leaves))
            self._require_memory()
            self._check_collate(dataset, proof)
            if streams.moved() is not None:
                raise Unfit(f"its batches are random: collate_fn draws from {streams.moved()}")
        self.shared = _whole_tensors(torch, dataset, collate)
        with torch.inference_mode(False):  # written outside it, whatever the loop is in now
            self.rows = self._empty_rows(leaves)
            self._have = torch.full((self.total,), self.shared is not None, dtype=torch.bool, device="cpu")
        self._left = self.total if self.shared is None else 0
        self._witnesses: dict[int, list[Any]] = {}
        self.spoiled: str | None = None
        self._contents: Contents | None = self._contents_of(dataset)
        self._visits_change_it: bool | None = None  # a counter, a cache: known after the first check

    def _prepared(self, proof: Proof) -> list[Any]:
        """The leaves of a batch of the proven samples."""
        self.layout, leaves = self._apart(self._collated(proof.samples), len(proof.samples))
        self._pinned_layout = self.layout.as_pinned()
        return leaves

    def _besides(self, proof: Proof) -> int:
        """Bytes a sample that are kept besides the rows."""
        return 0

    def _empty_rows(self, leaves: list[Any]) -> list[Rows]:
        if self.shared is None:
            return [rows_for(self.torch, leaf, self.total) for leaf in leaves]
        pairs = zip(leaves, self.shared, strict=True)
        return [TensorRows(self.torch, leaf, self.total, base) for leaf, base in pairs]

    # Filling

    def fill(self, dataset: Any, here: bool = False) -> None:
        """Fetch all that is missing, in this process; `here` the program would have done so too, and not in workers."""
        torch = self.torch
        whole = _stacked(torch, dataset, self.collate)
        if whole is not None and not any(len(one) != self.total for one in whole):
            self.put(torch.arange(self.total), whole)  # laid out otherwise than a batch is, so copied once
            return
        self._fetch_all(dataset, here)
        self._contents = self._contents_of(dataset)

    def _fetch_all(self, dataset: Any, here: bool) -> None:
        torch = self.torch
        changes = unchanged(torch, dataset, self.collate, streams=self._streams, attributes=not here)
        with nullcontext() if here else single_threaded(torch), changes as streams:
            missing = torch.nonzero(~self._have).reshape(-1)
            progress = Progress(self.name, len(missing))
            for rows in missing.split(self._chunk()):
                with hearing(forbids=True) as heard, silenced() as silence:
                    self._fetch_quietly(dataset, rows)
                if silence.broken:
                    raise Unfit("fetching an item prints or logs something")
                if heard.why is not None:
                    raise Unfit(heard.why)
                progress.tell(len(rows))
            if streams.moved() is not None:
                raise Unfit(f"{RANDOM}: fetching them drew from {streams.moved()}")

    def _fetch_quietly(self, dataset: Any, rows: Any) -> None:
        try:
            self._fetch(dataset, rows)
        except Unfit as unfit:
            raise (Unfit("fetching an item writes a file") if has_written(unfit) else unfit) from unfit

    def fill_in_forks(self, dataset: Any, count: int, seconds: float) -> bool:
        """The same in copies of this process, as workers are, while nothing is kept; False where that could not be.

        `seconds` it should take.
        """
        torch = self.torch
        if seconds > SAY_AFTER:
            about = f"the {self.total} items of {visible(self.name)} in {count} processes, in about {seconds:.0f} s"
            sys.stderr.write(f"hotlap: resident-data fetches {about}\n")
        parts = torch.arange(self.total, device="cpu").split(max(1, min(self._chunk(), self.total // (PARTS * count))))
        shares = [torch.cat(parts[number::count]) for number in range(min(count, len(parts)))]
        try:
            with torch.inference_mode(False):
                for rows in self.rows:
                    rows.share(torch)
            works = [partial(self._fetch_share, dataset, share) for share in shares]
            answers = in_forks(torch, works, SLOWER * seconds + TO_START)
        except (NoAnswer, OSError):  # OSError: no memory that can be shared
            return False
        for share, (why, unshared) in zip(shares, answers, strict=True):
            if why is not None:
                raise Unfit(why)
            self._hand_over(share, unshared)
        self._have.fill_(True)
        self._left = 0
        return True

    def _fetch_share(self, dataset: Any, share: Any) -> tuple[str | None, Any]:
        """In a copy of this process: why not, and what is not in shared memory."""
        streams = Streams(self.torch, dataset, self.collate)  # those of a GPU cannot be read in a copy
        keep_from_writing()
        try:
            with silenced() as silence, self.torch.inference_mode(False):
                for rows in share.split(self._chunk()):
                    self._fetch(dataset, rows)
        except Unfit as unfit:
            return "fetching an item writes a file" if has_written(unfit) else str(unfit), None
        if silence.broken or was_heard():
            return "fetching an item prints or logs something", None
        if streams.moved() is not None:
            return f"{RANDOM}: fetching them drew from {streams.moved()}", None
        return None, self._unshared(share)

    def _unshared(self, share: Any) -> Any:
        return [rows.unshared(share) for rows in self.rows]

    def _hand_over(self, share: Any, unshared: Any) -> None:
        for rows, one in zip(self.rows, unshared, strict=True):
            rows.hand_over(share, one)

    def _chunk(self) -> int:
        return max(1, min(CHUNK, CHUNK_BYTES * self.total // max(1, self.bytes)))

    def fetched(self, dataset: Any, indices: list[int]) -> Any:
        """A batch as the program fetches it, row by row and in its order, and kept; None where all of it is here."""
        rows = self.torch.tensor(indices, device="cpu")
        if self._left == 0 or bool(self._have[rows].all()):
            return None
        streams, surface = Streams(self.torch, dataset), Surface(self.torch, dataset, self.opened, self.names)
        with hearing() as heard:
            batch = self._keep(rows, fetch(dataset, indices))
        if surface.moved():  # a file was opened, say
            self._contents = None
        moved = streams.moved()
        why = heard.why if moved is None else f"{RANDOM}: fetching one draws from {moved}"
        if why is not None:
            self.spoiled = why
            refuse(dataset, why)
        return batch

    def _keep(self, rows: Any, samples: list[Any]) -> Any:
        """What the collate_fn makes of them; that it cannot be kept is said with the next batch."""
        batch = self.collate(samples)
        try:
            self._examine(rows, samples)
            self.put(rows, batch)
        except Unfit as unfit:
            self.spoiled = str(unfit)
        return batch

    @property
    def missing(self) -> float:
        """The share of items not kept yet."""
        return self._left / self.total

    def _fetch(self, dataset: Any, rows: Any) -> None:
        samples = visit(dataset, rows.tolist())
        self._examine(rows, samples)
        self.put(rows, self._collated(samples))

    def _examine(self, rows: Any, samples: list[Any]) -> None:
        """Before they are kept as rows."""
        if any(signature(self.torch, sample) != self.signature for sample in samples):
            raise Unfit("its items differ in shape or type, so they cannot be stacked")

    def put(self, rows: Any, batch: Any) -> None:
        """Keep a batch as its collate_fn made it."""
        layout, leaves = self._apart(batch, len(rows))
        if layout != self.layout:
            raise Unfit("its batches differ in their containers")
        with self.torch.inference_mode(False):
            for kept, leaf in zip(self.rows, leaves, strict=True):
                kept.put(rows, leaf)
        self._left -= len(rows[~self._have[rows]].unique())
        self._have[rows] = True

    # Reading

    def batch(self, wanted: Wanted, devices: Mapping[int, Any] = MappingProxyType({}), pin: bool = False) -> list[Any]:
        """The leaves of a batch, some on a device; the layout puts them together."""
        return [rows.take(wanted, devices.get(leaf), pin) for leaf, rows in enumerate(self.rows)]

    def built(self, leaves: list[Any], wanted: Wanted, pin: bool) -> Any:
        """The batch that these leaves belong to."""
        return (self._pinned_layout if pin else self.layout).build(iter(leaves))

    def bytes_for(self, devices: Mapping[int, Any]) -> int:
        """What copying these leaves to their devices would take there."""
        tensors = [(self.rows[leaf], device) for leaf, device in devices.items()]
        return sum(rows.bytes_for(device) for rows, device in tensors if isinstance(rows, TensorRows))

    def copy_to(self, devices: Mapping[int, Any]) -> None:
        with self.torch.inference_mode(False):
            for leaf, device in devices.items():
                rows = self.rows[leaf]
                if isinstance(rows, TensorRows):
                    rows.copy_to(device)

    # Checking

    def remember_witnesses(self) -> None:
        """On the host, so that checking them never asks the device."""
        if not self._witnesses:
            for row in random.Random(self.total).sample(range(self.total), min(self.total, WITNESSES)):
                self._witnesses[row] = self._kept_item(Wanted(self.torch.tensor([row], device="cpu")))

    def _kept_item(self, wanted: Wanted) -> list[Any]:
        return self.batch(wanted)

    def _item(self, dataset: Any, row: int) -> list[Any]:
        return self._apart(self._collated(visit(dataset, [row])), 1)[1]

    def changed(self, dataset: Any) -> str | None:
        """Why the dataset is no longer what it was when it was kept."""
        if length_of(dataset) != self.total:
            return f"its dataset had {self.total} items and now has {length_of(dataset)}"
        if self.spoiled is not None:
            return self.spoiled
        now = self._contents_of(dataset)
        if self._contents is not None and now.differ(self._contents):
            return "something its dataset holds has changed since it was kept"
        self._contents = now
        return self._changed_witness(dataset) if self._witnesses else None

    def _contents_of(self, dataset: Any) -> Contents:
        return Contents(self.torch, dataset, self.opened, self.names)

    def _changed_witness(self, dataset: Any) -> str | None:
        """What is held where it cannot be seen shows in the items."""
        chosen = random.SystemRandom().sample(sorted(self._witnesses), min(CHECKED, len(self._witnesses)))
        with silenced(), unchanged(self.torch, dataset, self.collate, streams=self._streams) as streams:
            for row in chosen:
                if not same(self.torch, self._item(dataset, row), self._witnesses[row]):
                    return f"item {row} of its dataset has changed since it was kept"
            if streams.moved() is not None:
                return f"fetching an item has begun to draw from {streams.moved()}"
        self._allow_for_visits(dataset)
        return None

    def _allow_for_visits(self, dataset: Any) -> None:
        """A dataset may count or keep what it is asked for: that was us."""
        if self._visits_change_it is not False:
            after = self._contents_of(dataset)
            self._visits_change_it = self._contents is None or after.differ(self._contents)
            self._contents = after

    def _check_collate(self, dataset: Any, proof: Proof) -> None:
        """A row of a batch depends on its own sample alone, whatever else is in the batch and in which order."""
        torch, count = self.torch, len(proof.samples)
        trial: list[Rows] = []
        for position, index in enumerate(proof.indices):
            layout, leaves = self._apart(self._collated(visit(dataset, [index])), 1)
            if layout != self.layout:
                raise NotStacked("what its collate_fn makes of one sample differs from what it makes of several")
            trial = trial or [rows_for(torch, leaf, count) for leaf in self._leaves_of(proof)]
            for rows, leaf in zip(trial, leaves, strict=True):
                rows.put(torch.tensor([position], device="cpu"), leaf)
        for chosen in compositions(count):
            batch = self._collated(visit(dataset, [proof.indices[one] for one in chosen]))
            layout, leaves = self._apart(batch, len(chosen))
            wanted = Wanted(torch.tensor(chosen, device="cpu"))
            picked = [rows.take(wanted) for rows in trial]
            if layout != self.layout or not same(torch, leaves, picked) or not same_strides(torch, leaves, picked):
                raise NotStacked("its collate_fn makes more of a batch than a stack of its samples")

    def _leaves_of(self, proof: Proof) -> list[Any]:
        return self._apart(self._collated(proof.samples), len(proof.samples))[1]

    def _collated(self, samples: list[Any]) -> Any:
        try:
            return self.collate(samples)
        except Exception as error:
            if raised_by_signal(error):
                raise
            raise Unfit(f"its samples cannot be stacked ({type(error).__name__}: {error})") from error

    def _apart(self, batch: Any, rows: int) -> tuple[Layout, list[Any]]:
        return take_apart(self.torch, batch, rows)

    def _require_memory(self) -> None:
        free = host_memory() * SHARE_OF_MEMORY
        if self.bytes > free:
            raise Unfit(f"{megabytes(self.bytes)} of data, and {megabytes(free)} of memory may be used")


@contextmanager
def single_threaded(torch: Any) -> Iterator[None]:
    """As a worker computes: a sum over many numbers by several threads has other last digits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compositions(count: int) -> list[list[int]]:
    """Batches of the proven items: all, backwards, one alone, some in disorder."""
    everything = list(range(count))
    shuffled = random.Random(count).sample(everything, count)
    return [everything, everything[::-1], [count - 1], shuffled[: max(1, count // 2)], shuffled[count // 2 :]]


def same_strides(torch: Any, leaves: Sequence[Any], picked: Sequence[Any]) -> bool:
    """Kernels are chosen by memory layout. Of a single row the outermost stride means nothing."""
    pairs = [(a, b) for a, b in zip(leaves, picked, strict=True) if isinstance(a, torch.Tensor)]
    return all(a.stride()[1:] == b.stride()[1:] for a, b in pairs)


def _row_bytes(torch: Any, leaf: Any) -> int:
    return TensorRows.row_bytes(leaf) if isinstance(leaf, torch.Tensor) else TextRows.row_bytes(leaf)


def _whole_tensors(torch: Any, dataset: Any, collate: Any) -> list[Any] | None:
    """A TensorDataset is stacked already: its own tensors are read, nothing is copied."""
    tensors = _stacked(torch, dataset, collate)
    return tensors if tensors is not None and all(one.is_contiguous() for one in tensors) else None


def _stacked(torch: Any, dataset: Any, collate: Any) -> list[Any] | None:
    data = torch.utils.data
    if type(dataset) is not data.TensorDataset or collate is not data.default_collate:
        return None
    tensors = list(dataset.tensors)
    return tensors if all(type(one) is torch.Tensor and not one.is_inference() for one in tensors) else None


def host_memory() -> float:
    """Bytes this process may still take: ranks on one machine share, and so do containers with a limit."""
    free = free_bytes()
    if free is None:
        import psutil

        free = psutil.virtual_memory().available
    return max(0.0, min(float(free), _addresses_left())) / int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)


def _addresses_left() -> float:
    """By `ulimit -v`."""
    try:
        import resource
    except ImportError:  # no Unix
        return math.inf
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return float(most - held_bytes().addresses) if most != resource.RLIM_INFINITY else math.inf


def megabytes(amount: float) -> str:
    return f"{amount / 1e6:,.1f} MB"

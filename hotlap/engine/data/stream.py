"""Data larger than memory: threads read ahead, in the order requested, and a side stream copies to the device.

Memory is bounded by `ahead` batches on the host and two on the device. On CUDA the host batches are pinned and used
again in turn. Every CUDA call is made by the thread that trains, inside `next`: a graph captured between two batches
would break, or be broken by, a CUDA call of another thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotlap.engine.data.errors import DataError, DataMismatch, DataUnreadable
from hotlap.engine.data.readers import Array, Reader, empty_like
from hotlap.engine.data.sources import Dtypes, cast, check_range, require_rows
from hotlap.engine.data.workers import Kind, this_machine, workers_for
from hotlap.engine.seam import Batch

LARGE_ROW = 2**16  # bytes: rows from this size on are read like pictures, by few readers
COPIES_AHEAD = 2  # batches on the device, or on their way, before they are requested

Host = tuple[Array, ...]


class Stream:
    """A streamed source over a reader.

    `threads` read at the same time and `ahead` batches are read before they are used; where they are not given, the
    machine and the size of a batch decide (workers.py). `dtypes` says what each column is cast to on the device: the
    copy moves the compact type.
    """

    def __init__(
        self, reader: Reader, *, threads: int | None = None, ahead: int | None = None, dtypes: Dtypes | None = None
    ) -> None:
        if (threads is not None and threads < 1) or (ahead is not None and ahead < 2):
            raise DataMismatch(f"threads={threads} must be at least 1 and ahead={ahead} at least 2")
        if dtypes is not None and len(dtypes) != len(reader.columns):
            raise DataMismatch(f"{len(dtypes)} types given for {len(reader.columns)} columns; use None to keep a type")
        for number, column in enumerate(reader.columns):
            if column.dtype.kind not in "biuf":
                raise DataMismatch(f"column {number} holds {column.dtype}, not numbers; encode it first")
        self.reader, self.threads, self.ahead, self.dtypes = reader, threads, ahead, dtypes
        self.rows = require_rows(reader.rows, "the streamed data")
        self.placed = ""

    def __len__(self) -> int:
        return self.rows

    def batches(self, order: Tensor, batch_size: int, device: torch.device, drop_last: bool = False) -> Iterator[Batch]:
        if len(order) == 0:
            return
        check_range(order, self.rows)
        numbers = order.to("cpu").numpy()
        pieces = [numbers[start : start + batch_size] for start in range(0, len(numbers), batch_size)]
        if drop_last and len(pieces[-1]) < batch_size:
            pieces.pop()
        pinned = torch.device(device).type == "cuda"
        threads, ahead = self._workers(batch_size, pinned)
        shelf = Shelf(self.reader, pieces, ahead, pinned)
        try:
            shelf.start(min(threads, len(pieces)))
            batches = on_device(shelf, torch.device(device)) if pinned else on_host(shelf, torch.device(device))
            for batch in batches:
                yield cast(batch, self.dtypes)
        finally:
            shelf.close()

    def _workers(self, batch_size: int, gpu: bool) -> tuple[int, int]:
        row_bytes = sum(column.row_bytes for column in self.reader.columns)
        kind: Kind = "image" if row_bytes >= LARGE_ROW else "table"
        chosen = workers_for(kind, batch_size * row_bytes, this_machine(gpu))
        return self.threads or max(chosen.readers, 1), self.ahead or chosen.ahead


@dataclass
class HostBatch:
    """Host memory for one batch; on CUDA it is pinned, and reused once its copy is done."""

    arrays: Host
    tensors: Batch | None = None


class Shelf:
    """Batches read by threads into a bounded number of places, taken off in order."""

    def __init__(self, reader: Reader, pieces: list[Array], ahead: int, pinned: bool) -> None:
        self.reader, self.pieces, self.pinned = reader, pieces, pinned
        self.changed = threading.Condition()
        self.free: deque[HostBatch] = deque()
        self.ready: dict[int, HostBatch | BaseException] = {}
        self.next_piece = 0
        self.closed = False
        self.readers: list[threading.Thread] = []
        for _ in range(min(ahead, len(pieces))):
            self.free.append(self._place(len(pieces[0])))

    def _place(self, rows: int) -> HostBatch:
        if not self.pinned:
            return HostBatch(())  # the trainer keeps the batches it gets, so each has memory of its own
        tensors = tuple(
            torch.empty((rows, *column.shape), dtype=torch_dtype(column.dtype), pin_memory=True)
            for column in self.reader.columns
        )
        return HostBatch(tuple(tensor.numpy() for tensor in tensors), tensors)

    def start(self, threads: int) -> None:
        for number in range(threads):
            thread = threading.Thread(target=self._work, name=f"hotlap-read-{number}", daemon=True)
            self.readers.append(thread)
            thread.start()

    def _work(self) -> None:
        while (job := self._job()) is not None:
            number, place = job
            done: HostBatch | BaseException
            try:
                rows = self.pieces[number]
                arrays = tuple(array[: len(rows)] for array in place.arrays) or empty_like(self.reader, len(rows))
                self.reader.read(rows, arrays)
                done = HostBatch(arrays, place.tensors)
            except BaseException as error:  # noqa: BLE001 - raised again by take(), in the thread that trains
                done = error
            with self.changed:
                self.ready[number] = done
                self.changed.notify_all()

    def _job(self) -> tuple[int, HostBatch] | None:
        with self.changed:
            # A place is taken together with the lowest number left, so the batch next in order never lacks one.
            while not self.closed and self.next_piece < len(self.pieces) and not self.free:
                self.changed.wait()
            if self.closed or self.next_piece >= len(self.pieces):
                return None
            number, self.next_piece = self.next_piece, self.next_piece + 1
            return number, self.free.popleft()

    def is_ready(self, number: int) -> bool:
        """Return whether a batch can be copied ahead; an error waits until its batch is requested."""
        with self.changed:
            return isinstance(self.ready.get(number), HostBatch)

    def take(self, number: int) -> HostBatch:
        """Wait for a batch and return it; raise here what reading it raised."""
        with self.changed:
            while number not in self.ready:
                self.changed.wait()
            done = self.ready.pop(number)
        if isinstance(done, BaseException):
            raise with_row(done, self.pieces[number])
        return done

    def give_back(self, place: HostBatch) -> None:
        arrays = tuple(tensor.numpy() for tensor in place.tensors) if place.tensors else ()
        with self.changed:
            self.free.append(HostBatch(arrays, place.tensors))
            self.changed.notify_all()

    def close(self) -> None:
        """End the threads; each finishes at most the batch it is reading."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        for thread in self.readers:
            thread.join()
        self.ready.clear()
        self.free.clear()


def with_row(error: BaseException, rows: Array) -> BaseException:
    """Return the error with the first row of its batch; errors that already name their file do not change."""
    if isinstance(error, DataError) or not isinstance(error, Exception):
        return error
    wrapped = DataUnreadable("the data", f"{type(error).__name__}: {error}", int(rows[0]))
    wrapped.__cause__ = error
    return wrapped


def on_host(shelf: Shelf, device: torch.device) -> Iterator[Batch]:
    for number in range(len(shelf.pieces)):
        place = shelf.take(number)
        shelf.give_back(HostBatch(()))
        yield tuple(torch.from_numpy(native(array)).to(device) for array in place.arrays)


def on_device(shelf: Shelf, device: torch.device) -> Iterator[Batch]:
    """Copy on a stream of its own, up to COPIES_AHEAD batches before they are requested."""
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    copied: deque[tuple[Batch, Any]] = deque()
    flying: deque[tuple[HostBatch, Any]] = deque()
    issued, pieces = 0, len(shelf.pieces)
    for number in range(pieces):
        while issued < pieces and issued < number + COPIES_AHEAD and (issued == number or shelf.is_ready(issued)):
            return_finished(shelf, flying)
            place = shelf.take(issued)
            batch, done = copy(place, len(shelf.pieces[issued]), device, side)
            copied.append((batch, done))
            flying.append((place, done))
            issued += 1
        return_finished(shelf, flying)
        batch, done = copied.popleft()
        current = torch.cuda.current_stream(device)
        current.wait_event(done)
        for tensor in batch:
            tensor.record_stream(current)  # its memory belongs to the side stream: not reused while this one reads it
        yield batch


def copy(place: HostBatch, rows: int, device: torch.device, side: Any) -> tuple[Batch, Any]:
    assert place.tensors is not None
    with torch.cuda.stream(side):
        batch = tuple(tensor[:rows].to(device, non_blocking=True) for tensor in place.tensors)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(side)
    return batch, done


def return_finished(shelf: Shelf, flying: deque[tuple[HostBatch, Any]]) -> None:
    """Reuse the places of finished copies. Wait for the oldest copy only if no place is left to read into."""
    while flying and (flying[0][1].query() or not has_room(shelf, flying)):
        place, done = flying.popleft()
        done.synchronize()
        shelf.give_back(place)


def has_room(shelf: Shelf, flying: deque[tuple[HostBatch, Any]]) -> bool:
    with shelf.changed:
        return bool(shelf.free or shelf.ready) or shelf.next_piece >= len(shelf.pieces)


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype.newbyteorder("="))).dtype


def native(array: Array) -> Array:
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))

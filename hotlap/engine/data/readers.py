"""Rows read from files, by number. A reader fills arrays it is given, in the order requested, from any thread.

A reader may sort the rows of a batch before it reads them. Errors name the file and row that cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hotlap.engine.data.errors import DataMismatch, DataUnreadable, EmptySplit
from hotlap.machine import usable_cores

Array = np.ndarray[Any, Any]
BLOCK_BYTES = 2**23
LOADERS = 8  # threads: more do not read a disk faster


@dataclass(frozen=True)
class Column:
    """The shape and type of one row of a column."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Reader(Protocol):
    @property
    def rows(self) -> int: ...

    @property
    def columns(self) -> tuple[Column, ...]: ...

    def read(self, rows: Array, out: Sequence[Array]) -> None:
        """Fill `out[column][i]` with row `rows[i]`; rows are checked to be in range by the caller."""


def bytes_of(reader: Reader) -> int:
    return reader.rows * sum(column.row_bytes for column in reader.columns)


def empty_like(reader: Reader, rows: int) -> tuple[Array, ...]:
    return tuple(np.empty((rows, *column.shape), column.dtype) for column in reader.columns)


def load_all(reader: Reader, block_bytes: int = BLOCK_BYTES) -> tuple[Array, ...]:
    """Load all rows into memory, read in blocks by several threads."""
    out = empty_like(reader, reader.rows)

    def load(rows: Array) -> None:
        reader.read(rows, [column[rows[0] : rows[-1] + 1] for column in out])

    with ThreadPoolExecutor(min(LOADERS, usable_cores())) as pool:
        for done in [pool.submit(load, rows) for rows in blocks_of(reader, block_bytes)]:
            done.result()
    return out


def blocks_of(reader: Reader, block_bytes: int = BLOCK_BYTES) -> Iterator[Array]:
    """Yield all rows in order, in blocks of about so many bytes."""
    row_bytes = max(sum(column.row_bytes for column in reader.columns), 1)
    step = max(block_bytes // row_bytes, 1)
    for start in range(0, reader.rows, step):
        yield np.arange(start, min(start + step, reader.rows))


def unmasked(values: Any) -> Any:
    """Return the values, but refuse masked ones among them: neither a tensor nor a file has a mask."""
    if not isinstance(values, np.ma.MaskedArray):
        return values
    if count := int(np.count_nonzero(values.mask)):
        raise DataMismatch(
            f"{count} values of a masked array of shape {values.shape} are masked, and a mask would be lost; "
            f"replace them with array.filled(…), or leave out their rows"
        )
    return values.data


class Arrays:
    """Arrays in memory or memory-mapped, with the same rows. Paths are mapped: `Arrays("x.npy", "y.npy")`."""

    def __init__(self, *arrays: Array | Path | str) -> None:
        self.arrays = [mapped_npy(a) if isinstance(a, str | Path) else np.asanyarray(unmasked(a)) for a in arrays]
        self.paths = [str(a) if isinstance(a, str | Path) else "an array in memory" for a in arrays]
        if not arrays or any(array.ndim == 0 for array in self.arrays):
            raise DataMismatch("give at least one array, each with at least one dimension, the rows")
        lengths = [len(array) for array in self.arrays]
        if len(set(lengths)) > 1:
            named = ", ".join(f"{path}: {length}" for path, length in zip(self.paths, lengths, strict=True))
            raise DataMismatch(f"all arrays need the same number of rows ({named})")
        self.rows = lengths[0]
        self.columns = tuple(Column(array.shape[1:], array.dtype) for array in self.arrays)

    def read(self, rows: Array, out: Sequence[Array]) -> None:
        for array, target in zip(self.arrays, out, strict=True):
            if isinstance(array, np.memmap):
                order = np.argsort(rows, kind="stable")  # pages are touched from front to back
                target[order] = np.take(array, rows[order], axis=0)
            else:
                np.take(array, rows, axis=0, out=target, mode="clip")  # "raise" would copy through a buffer


def mapped_npy(path: Path | str) -> Array:
    """Map a `.npy` file into memory; its size is checked now, since a missing page later would kill the process."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (OSError, ValueError, EOFError) as error:
        raise DataUnreadable(path, npy_reason(path, error)) from error


def npy_reason(path: Path | str, error: Exception) -> str:
    """Return why a `.npy` file cannot be used, in words."""
    file = Path(path)
    if not file.exists():
        return "there is no such file"
    if file.stat().st_size == 0:
        return "it is empty"
    with file.open("rb") as opened:
        magic = opened.read(6)
    if magic != b"\x93NUMPY":
        return "it is not a .npy file"
    if "mmap length" in str(error) or "reshape" in str(error) or "EOF" in str(error) or "fromfile" in str(error):
        return f"it is cut short ({file.stat().st_size} bytes are fewer than its header says)"
    return str(error)


class NpyFolder:
    """A folder of `.npy` files, one row each, in the order of their names."""

    def __init__(self, folder: Path | str, pattern: str = "*.npy") -> None:
        self.folder = Path(folder)
        self.files = sorted(self.folder.glob(pattern))
        if not self.files:
            raise EmptySplit(f"no file {pattern} in {self.folder}")
        self.rows = len(self.files)
        first = self.load(0)
        self.columns = (Column(first.shape, first.dtype),)

    def load(self, row: int) -> Array:
        path = self.files[row]
        try:
            return np.load(path, allow_pickle=False)  # type: ignore[no-any-return]
        except (OSError, ValueError, EOFError) as error:
            raise DataUnreadable(path, npy_reason(path, error), row) from error

    def read(self, rows: Array, out: Sequence[Array]) -> None:
        column = self.columns[0]
        for place, row in enumerate(rows):
            values = self.load(int(row))
            if values.shape != column.shape or values.dtype != column.dtype:
                why = f"it is {values.dtype} {values.shape}, but the first file is {column.dtype} {column.shape}"
                raise DataUnreadable(self.files[int(row)], why, int(row))
            out[0][place] = values


class ZipReader:
    """Columns of several readers with the same rows, side by side: pictures from files, labels from memory."""

    def __init__(self, *readers: Reader) -> None:
        lengths = [reader.rows for reader in readers]
        if len(set(lengths)) != 1:
            raise DataMismatch(f"readers side by side need the same number of rows, not {lengths}")
        self.readers, self.rows = readers, lengths[0]
        self.columns = tuple(column for reader in readers for column in reader.columns)

    def read(self, rows: Array, out: Sequence[Array]) -> None:
        first = 0
        for reader in self.readers:
            reader.read(rows, out[first : first + len(reader.columns)])
            first += len(reader.columns)


class ChainReader:
    """Readers with the same columns, one after the other: many files as one. Those without rows are skipped."""

    def __init__(self, *given: Reader) -> None:
        if not given:
            raise EmptySplit("no readers were given")
        readers = tuple(reader for reader in given if reader.rows) or given[:1]
        if any(reader.columns != readers[0].columns for reader in readers):
            raise DataMismatch(f"readers one after the other need the same columns: {[r.columns for r in readers]}")
        self.readers, self.columns = readers, readers[0].columns
        self.ends = np.cumsum([reader.rows for reader in readers])
        self.rows = int(self.ends[-1])

    def read(self, rows: Array, out: Sequence[Array]) -> None:
        owner = np.searchsorted(self.ends, rows, side="right")
        for number in np.unique(owner):
            reader, places = self.readers[number], np.flatnonzero(owner == number)
            block = empty_like(reader, len(places))
            reader.read(rows[places] - (self.ends[number] - reader.rows), block)
            for target, values in zip(out, block, strict=True):
                target[places] = values

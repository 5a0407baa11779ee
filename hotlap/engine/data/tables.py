"""Rows of Parquet, Arrow and CSV files. A column is a name, or a tuple of names that are put beside each other.

Parquet is decoded by row groups, and the last ones are cached within `keep_bytes`: read in order, each is decoded once.
To shuffle a file larger than that, turn it into memory-mapped arrays first, by `stored` in cache.py. An Arrow file
without compression is memory-mapped, and nothing is decoded.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.engine.data.errors import DataMismatch, DataUnreadable, optional
from hotlap.engine.data.hdf5 import runs
from hotlap.engine.data.readers import Array, ChainReader, Column

KEEP_BYTES = 256 * 2**20
Name = str | tuple[str, ...]


class RowGroups:
    """Rows in groups that are decoded as a whole; the last used are cached within a number of bytes."""

    def __init__(self, path: Path, names: Sequence[Name], group_rows: Sequence[int], keep_bytes: int) -> None:
        self.path, self.names, self.keep_bytes = path, tuple(names), keep_bytes
        self.ends = np.cumsum(np.asarray(group_rows, dtype=np.int64)) if len(group_rows) else np.zeros(0, np.int64)
        self.rows = int(self.ends[-1]) if len(self.ends) else 0
        self.cache: OrderedDict[int, tuple[Array, ...]] = OrderedDict()
        self.cached_bytes = 0
        self.columns: tuple[Column, ...] = ()
        self.lock = threading.Lock()  # one decodes at a time: the decoder has threads of its own

    def _decode(self, group: int) -> Any:
        raise NotImplementedError

    def group(self, number: int) -> tuple[Array, ...]:
        with self.lock:
            if number in self.cache:
                self.cache.move_to_end(number)
                return self.cache[number]
            first = int(self.ends[number - 1]) if number else 0
            try:
                table = self._decode(number)
                columns = {name: table.column(name) for name in flat(self.names)}
            except (KeyError, OSError, ValueError) as error:  # KeyError: two columns of one name
                raise DataUnreadable(self.path, first_line(error), first) from error
            arrays = tuple(self._beside(columns, name, first) for name in self.names)
            self._check_group(arrays, first)
            self._keep(number, arrays)
            return arrays

    def _check_group(self, arrays: tuple[Array, ...], first: int) -> None:
        """Refuse a group of another shape or type: numpy would repeat a list of one number to the others' length."""
        for name, array, column in zip(self.names, arrays, self.columns or columns_of(arrays), strict=True):
            if array.shape[1:] != column.shape or array.dtype != column.dtype:
                found, wanted = f"{array.dtype} {array.shape[1:]}", f"{column.dtype} {column.shape}"
                raise DataUnreadable(self.path, f"column {name!r} is {found} from here on, but {wanted} before", first)

    def _keep(self, number: int, arrays: tuple[Array, ...]) -> None:
        self.cache[number] = arrays
        self.cached_bytes += sum(array.nbytes for array in arrays)
        while self.cached_bytes > self.keep_bytes and len(self.cache) > 1:
            _, old = self.cache.popitem(last=False)
            self.cached_bytes -= sum(array.nbytes for array in old)

    def _beside(self, columns: Mapping[str, Any], name: Name, first: int) -> Array:
        if isinstance(name, str):
            return self._array(columns[name], name, first)
        parts = [self._array(columns[part], part, first) for part in name]
        for part, array in zip(name, parts, strict=True):
            if array.ndim > 1 or array.dtype.kind not in "biuf":
                kind = "lists" if array.ndim > 1 else str(array.dtype)
                raise DataMismatch(f"{self.path}: column {part!r} holds {kind}; only numbers can be put beside others")
        return np.stack(parts, axis=1)

    def _array(self, column: Any, name: str, first: int) -> Array:
        """Return one column as `[rows]` or, for lists of one length, `[rows, length]`."""
        if column.null_count:
            raise DataUnreadable(self.path, f"column {name!r} has {column.null_count} missing values", first)
        whole = column.combine_chunks() if hasattr(column, "combine_chunks") else column
        whole = whole.chunk(0) if hasattr(whole, "chunk") and whole.num_chunks == 1 else whole
        if "list" not in str(whole.type):
            return np.asarray(whole.to_numpy(zero_copy_only=False))
        flat = whole.flatten()
        if flat.null_count:
            raise DataUnreadable(
                self.path, f"the lists in column {name!r} have {flat.null_count} missing values", first
            )
        values = np.asarray(flat.to_numpy(zero_copy_only=False))
        if len(whole) == 0 or len(values) % len(whole) or not equal_lengths(whole, len(values) // len(whole)):
            raise DataUnreadable(self.path, f"the lists in column {name!r} differ in length", first)
        return values.reshape(len(whole), -1)

    def _columns(self) -> tuple[Column, ...]:
        if not self.rows:
            return tuple(Column((), np.dtype(np.float32)) for _ in self.names)
        columns = columns_of(self.group(int(np.searchsorted(self.ends, 0, side="right"))))  # the first with a row
        for name, column in zip(self.names, columns, strict=True):
            if column.dtype.kind not in "biuf":
                raise DataMismatch(f"{self.path}: column {name!r} holds {column.dtype}, not numbers; encode it first")
        return columns

    def read(self, rows: Array, out: Sequence[Array]) -> None:
        order = np.argsort(rows, kind="stable")
        groups = np.searchsorted(self.ends, rows[order], side="right")
        for first, last in runs(groups, 1):
            number, places = int(groups[first]), order[first:last]
            start = int(self.ends[number - 1]) if number else 0
            for target, values in zip(out, self.group(number), strict=True):
                target[places] = values[rows[places] - start]


def flat(names: Sequence[Name]) -> list[str]:
    return [part for name in names for part in ((name,) if isinstance(name, str) else name)]


def columns_of(arrays: Sequence[Array]) -> tuple[Column, ...]:
    return tuple(Column(array.shape[1:], array.dtype) for array in arrays)


def equal_lengths(column: Any, length: int) -> bool:
    if "fixed_size_list" in str(column.type):
        return True
    lengths = np.diff(np.asarray(column.offsets))
    return bool((lengths == length).all())


class Parquet(RowGroups):
    """Columns of one Parquet file."""

    def __init__(self, path: Path | str, *columns: Name, keep_bytes: int = KEEP_BYTES) -> None:
        parquet = optional("pyarrow.parquet", f"reading {path}")
        try:
            self.file = parquet.ParquetFile(path)
        except (OSError, ValueError) as error:
            raise DataUnreadable(path, reason(Path(path), error, "a Parquet file")) from error
        names = known(Path(path), columns, self.file.schema_arrow.names)
        meta = self.file.metadata
        sizes = [meta.row_group(number).num_rows for number in range(meta.num_row_groups)]
        super().__init__(Path(path), names, sizes, keep_bytes)
        self.columns = self._columns()

    def _decode(self, group: int) -> Any:
        return self.file.read_row_group(group, columns=flat(self.names))


class Arrow(RowGroups):
    """Columns of one Arrow (Feather version 2) file, memory-mapped."""

    def __init__(self, path: Path | str, *columns: Name, keep_bytes: int = KEEP_BYTES) -> None:
        pyarrow = optional("pyarrow", f"reading {path}")
        ipc = optional("pyarrow.ipc", f"reading {path}")
        try:
            self.file = ipc.open_file(pyarrow.memory_map(str(path)))
            sizes = [self.file.get_batch(number).num_rows for number in range(self.file.num_record_batches)]
        except (OSError, ValueError) as error:
            raise DataUnreadable(path, reason(Path(path), error, "an Arrow file")) from error
        names = known(Path(path), columns, self.file.schema.names)
        super().__init__(Path(path), names, sizes, keep_bytes)
        self.columns = self._columns()

    def _decode(self, group: int) -> Any:
        return self.file.get_batch(group)


class Csv(RowGroups):
    """Columns of one CSV file with a header, which is parsed once, as a whole, and stays in memory."""

    def __init__(self, path: Path | str, *columns: Name) -> None:
        csv = optional("pyarrow.csv", f"reading {path}")
        try:
            self.table = csv.read_csv(path)
        except (OSError, ValueError) as error:
            raise DataUnreadable(path, reason(Path(path), error, "a CSV file")) from error
        names = known(Path(path), columns, self.table.column_names)
        super().__init__(Path(path), names, [self.table.num_rows], self.table.nbytes)
        self.columns = self._columns()

    def _decode(self, group: int) -> Any:
        return self.table


class Folder(ChainReader):
    """Columns of all CSV, Parquet and Arrow files of a folder, one after the other by name. All have the same kind."""

    def __init__(self, path: Path | str, *columns: Name) -> None:
        files = sorted(file for file in Path(path).iterdir() if file.suffix in KINDS) if Path(path).is_dir() else []
        kinds = {KINDS[file.suffix] for file in files}
        if len(kinds) != 1:
            found = "files of several kinds" if kinds else "no .csv, .parquet, .arrow or .feather file"
            raise DataUnreadable(path, f"there is {found} in this folder")
        super().__init__(*(kind(file, *columns) for kind in kinds for file in files))


KINDS: dict[str, Callable[..., RowGroups]] = {".csv": Csv, ".parquet": Parquet, ".arrow": Arrow, ".feather": Arrow}


def known(path: Path, requested: Sequence[Name], names: Sequence[str]) -> list[Name]:
    for name in flat(requested):
        if name not in names:
            raise DataUnreadable(path, f"it has no column {name!r}; it has: {', '.join(names)}")
    return list(requested or names)


def reason(path: Path, error: Exception, kind: str) -> str:
    if not path.exists():
        return "there is no such file"
    return f"it is not {kind}, or it is cut short ({first_line(error)})"


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

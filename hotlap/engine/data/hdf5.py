"""Rows of HDF5 datasets. A dataset stored in one piece is memory-mapped; a chunked one is read chunk by chunk."""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.engine.data.errors import DataMismatch, DataUnreadable, optional
from hotlap.engine.data.readers import Array, Column

CHUNK_CACHE = 64 * 2**20  # bytes of decoded chunks HDF5 keeps: neighbouring batches decode a chunk once
ROWS_AT_A_TIME = 1024  # where the file names no chunk


class Hdf5:
    """Datasets of one file, one column each; the first `row_dims` dimensions together number the rows.

    `Hdf5("train.h5", "mel", "segment_label", row_dims=3)` has a row for every segment of `[file, long, short, …]`.
    Without names, every dataset at the top of the file is read; name one in a group with its group, "group/mel".
    """

    def __init__(self, path: Path | str, *datasets: str, row_dims: int = 1) -> None:
        h5py = optional("h5py", f"reading {path}")
        self.path = Path(path)
        try:
            self.file = h5py.File(self.path, "r", rdcc_nbytes=CHUNK_CACHE)
        except OSError as error:
            raise DataUnreadable(self.path, reason(self.path, error)) from error
        self.datasets = [dataset_of(self.path, self.file, name) for name in datasets or at_top(self.path, self.file)]
        self.outer = self._outer(row_dims)
        self.inner = int(np.prod(self.outer[1:], dtype=np.int64))
        self.rows = self.outer[0] * self.inner
        self.columns = tuple(column_of(self.path, dataset, row_dims) for dataset in self.datasets)
        self.maps = [mapped(d, self.rows, c) for d, c in zip(self.datasets, self.columns, strict=True)]

    def _outer(self, row_dims: int) -> tuple[int, ...]:
        shapes = {dataset.name.lstrip("/"): tuple(dataset.shape) for dataset in self.datasets}
        if row_dims < 1:
            raise DataMismatch(f"{self.path}: row_dims={row_dims} must be at least 1; the datasets have: {shapes}")
        if short := {name: shape for name, shape in shapes.items() if len(shape) < row_dims}:
            raise DataMismatch(f"{self.path}: datasets with fewer than row_dims={row_dims} dimensions: {short}")
        leading = {shape[:row_dims] for shape in shapes.values()}
        if len(leading) != 1:
            raise DataMismatch(f"{self.path}: the first {row_dims} dimensions differ between datasets: {shapes}")
        return leading.pop()

    def close(self) -> None:
        self.file.close()

    def read(self, rows: Array, out: Sequence[Array]) -> None:
        order = np.argsort(rows, kind="stable")
        for number, target in enumerate(out):
            if (whole := self.maps[number]) is not None:
                target[order] = np.take(whole, rows[order], axis=0)
            else:
                self._read_chunks(number, rows, order, target)

    def _read_chunks(self, number: int, rows: Array, order: Array, target: Array) -> None:
        dataset, column = self.datasets[number], self.columns[number]
        outer = rows[order] // self.inner
        for first, last in runs(outer, (dataset.chunks or (ROWS_AT_A_TIME,))[0]):
            low, high = int(outer[first]), int(outer[last - 1]) + 1
            try:
                block = dataset[low:high].reshape(-1, *column.shape)
            except (OSError, RuntimeError) as error:
                raise DataUnreadable(self.path, f"{dataset.name}: {error}", int(rows[order[first]])) from error
            places = order[first:last]
            target[places] = block[rows[places] - low * self.inner]


def runs(outer: Array, chunk: int) -> Iterator[tuple[int, int]]:
    """Yield stretches of sorted numbers that lie in one chunk: it has to be decoded as a whole anyway."""
    if len(outer) == 0:
        return
    ends = np.flatnonzero(np.diff(outer // chunk)) + 1
    bounds = [0, *ends.tolist(), len(outer)]
    yield from itertools.pairwise(bounds)


def at_top(path: Path, file: Any) -> list[str]:
    names = [name for name in sorted(file) if hasattr(file.get(name), "shape")]
    if not names:
        raise DataUnreadable(path, f"it has no dataset at the top; it has: {listed(datasets_in(file))}")
    return names


def datasets_in(group: Any) -> list[str]:
    found: list[str] = []
    group.visititems(lambda name, item: found.append(name) if hasattr(item, "shape") else None)
    return found


def listed(names: Sequence[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def dataset_of(path: Path, file: Any, name: str) -> Any:
    found = file.get(name)
    if hasattr(found, "visititems"):
        inside = listed([f"{name}/{inner}" for inner in datasets_in(found)])
        raise DataUnreadable(path, f"{name!r} is a group, not a dataset; name what is in it: {inside}")
    if found is None or not hasattr(found, "shape"):
        if (target := link_of(file, name)) is not None:
            raise DataUnreadable(path, f"{name!r} is a link to {target}, which cannot be opened")
        near = difflib.get_close_matches(name, list(file), 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise DataUnreadable(path, f"it has no dataset {name!r}; {hint}It has: {listed(list(file))}")
    return found


def link_of(file: Any, name: str) -> str | None:
    """Return where a soft or external link leads; None if it is not a link."""
    link = file.get(name, getlink=True)
    if (inside := getattr(link, "path", None)) is None:
        return None
    outside = getattr(link, "filename", None)
    return f"{inside!r} in {outside}" if outside else repr(inside)


def column_of(path: Path, dataset: Any, row_dims: int) -> Column:
    if dataset.dtype.kind not in "biufS":
        raise DataMismatch(f"{path}: dataset {dataset.name} holds {dataset.dtype}, not numbers; encode it first")
    return Column(tuple(dataset.shape[row_dims:]), dataset.dtype)


def mapped(dataset: Any, rows: int, column: Column) -> Array | None:
    """Map the dataset's own bytes if it is stored in one piece, unfiltered; a link may lead to another file."""
    path = Path(os.fsdecode(dataset.file.filename))
    offset = dataset.id.get_offset()
    if dataset.chunks is not None or dataset.external or offset is None or rows == 0:
        return None
    try:
        return np.memmap(path, column.dtype, "r", offset, (rows, *column.shape))
    except (OSError, ValueError) as error:
        raise DataUnreadable(path, f"{dataset.name} lies outside the file: it is cut short") from error


def reason(path: Path, error: Exception) -> str:
    if not path.exists():
        return "there is no such file"
    text = str(error)
    if "truncated" in text:
        return "it is cut short (a copy or a write did not finish)"
    if "signature" in text:
        return "it is not an HDF5 file"
    return text

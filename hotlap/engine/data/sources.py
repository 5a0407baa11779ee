"""What the trainer trains on. A source has rows; a resident one gathers a batch where its data lives, by index.

`gather` is safe inside a CUDA graph: device operations alone, no host sync, and shapes that depend on `len(index)`
only. Data is kept in the type it was given (bool, uint8, float16 …) and cast after the gather: a row of 1024 bits as
bool moves a quarter of the bytes it would move as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from hotlap.engine.data.errors import DataMismatch, EmptySplit
from hotlap.engine.data.readers import unmasked
from hotlap.engine.seam import AnySource, Batch, Resident, StreamSource

Dtypes = Sequence[torch.dtype | None]
ArrayLike = Tensor | np.ndarray[Any, Any]
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}  # torch gathers these alone


def as_tensor(values: ArrayLike) -> Tensor:
    """Return the same memory as a tensor, or a copy if torch cannot use it (read-only, reversed, other byte order)."""
    if isinstance(values, Tensor):
        return values.detach()
    array = np.asarray(unmasked(values))
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise DataMismatch(f"values of type {array.dtype} cannot become a tensor; convert them to numbers") from error


def cast(batch: Batch, dtypes: Dtypes | None) -> Batch:
    if dtypes is None:
        return batch
    return tuple(tensor if dtype is None else tensor.to(dtype) for tensor, dtype in zip(batch, dtypes, strict=True))


def require_rows(rows: int, what: str) -> int:
    if rows < 1:
        raise EmptySplit(f"{what} is empty: nothing to train or evaluate on")
    return rows


class Tensors:
    """Tensors with the same number of rows on one device; a batch is one gather of each.

    `dtypes` says what each is cast to after the gather (None: as it is kept).
    """

    order: Callable[[int, int], Tensor] | None = None  # of an epoch, where another than the recipe's is wanted

    def __init__(
        self, *tensors: ArrayLike, device: torch.device | str | None = None, dtypes: Dtypes | None = None
    ) -> None:
        if not tensors:
            raise EmptySplit("no tensors were given")
        columns = [as_tensor(values) for values in tensors]
        if dtypes is not None and len(dtypes) != len(columns):
            raise DataMismatch(f"{len(dtypes)} types were given for {len(columns)} tensors; use None to keep a type")
        self.rows = require_rows(same_rows(columns), "the data")
        self.device = torch.device(device) if device is not None else columns[0].device
        # contiguous: index_select of a strided tensor would copy the whole of it in every batch on some devices
        self.tensors = tuple(tensor.to(self.device).contiguous() for tensor in columns)
        self.wide = tuple(map(widened, self.tensors))
        self.dtypes = dtypes
        self.placed = ""

    def __len__(self) -> int:
        return self.rows

    def gather(self, index: Tensor) -> Batch:
        rows = (rows_of(tensor, wide, index) for tensor, wide in zip(self.tensors, self.wide, strict=True))
        return cast(tuple(rows), self.dtypes)


def widened(tensor: Tensor) -> Tensor | None:
    """View rows of small numbers as rows of eight-byte numbers: a GPU gathers number by number, whatever their size."""
    row_bytes = tensor[0].numel() * tensor.element_size()
    if tensor.element_size() >= 4 or row_bytes % 8 or row_bytes == 0 or tensor.data_ptr() % 8:
        return tensor.view(SIGNED[tensor.dtype]) if tensor.dtype in SIGNED else None
    return tensor.view(len(tensor), -1).view(torch.uint8).view(torch.int64)


def rows_of(tensor: Tensor, wide: Tensor | None, index: Tensor) -> Tensor:
    if wide is None:
        return tensor.index_select(0, index)
    return wide.index_select(0, index).view(torch.uint8).view(tensor.dtype).view(len(index), *tensor.shape[1:])


def same_rows(tensors: Sequence[Tensor]) -> int:
    rows = [len(tensor) if tensor.dim() else -1 for tensor in tensors]
    if rows[0] < 0 or len(set(rows)) > 1:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise DataMismatch(f"all tensors need the same first dimension, the rows; these have shapes {shapes}")
    return rows[0]


class Subset:
    """Some rows of a resident source, in the order given."""

    def __init__(self, source: Resident, rows: Tensor) -> None:
        self.source, self.device = source, source.device
        self.chosen = row_numbers(rows, source.rows).to(self.device)
        self.rows = len(self.chosen)

    def gather(self, index: Tensor) -> Batch:
        return with_rows(self.source.gather(self.chosen.index_select(0, index)), len(index))


class MapSource:
    """A function over the gathered batch, on the device. It must be capture-safe for the step to become one graph."""

    def __init__(self, source: Resident, function: Callable[..., Batch | Tensor]) -> None:
        self.source, self.function = source, function
        self.rows, self.device = source.rows, source.device

    def gather(self, index: Tensor) -> Batch:
        return with_rows(as_batch(self.function(*self.source.gather(index))), len(index))


class ConcatSource:
    """Resident sources one after the other.

    Every batch gathers from every part and keeps what belongs to it, because a graph cannot have shapes that depend
    on the index: the cost is one gather per part, so join few and large parts.
    """

    def __init__(self, *parts: Resident) -> None:
        if not parts:
            raise EmptySplit("no sources were given")
        if any(not is_resident(source) for source in parts):
            raise DataMismatch(
                f"ConcatSource joins only resident sources, not {[type(source).__name__ for source in parts]}; "
                f"join the readers of streams instead: Stream(ChainReader(first, second))"
            )
        self.parts, self.device = parts, parts[0].device
        if any(source.device != self.device for source in parts):
            raise DataMismatch(
                f"sources on several devices cannot be joined: {[str(source.device) for source in parts]}"
            )
        self.rows = sum(source.rows for source in parts)
        self._same_columns()

    def _same_columns(self) -> None:
        first = torch.zeros(1, dtype=torch.int64, device=self.device)
        kinds = [[(tuple(column.shape[1:]), column.dtype) for column in source.gather(first)] for source in self.parts]
        if any(kind != kinds[0] for kind in kinds):
            raise DataMismatch(f"sources whose rows differ in shape or type cannot be joined: {kinds}")

    def gather(self, index: Tensor) -> Batch:
        start = self.parts[0].rows
        joined = self.parts[0].gather(index.clamp(max=start - 1))
        for source in self.parts[1:]:
            own = source.gather((index - start).clamp(min=0, max=source.rows - 1))
            here = index >= start
            joined = tuple(
                torch.where(here.view(-1, *[1] * (new.dim() - 1)), new, old)
                for new, old in zip(own, joined, strict=True)
            )
            start += source.rows
        return joined


class StreamedSubset:
    """Some rows of a streamed source, in the order given."""

    def __init__(self, source: StreamSource, rows: Tensor) -> None:
        self.source = source
        self.chosen = row_numbers(rows, source.rows).to("cpu")
        self.rows = len(self.chosen)

    def batches(self, order: Tensor, batch_size: int, device: torch.device, drop_last: bool = False) -> Iterable[Batch]:
        batches = self.source.batches(self.chosen[order], batch_size, device, drop_last)
        return with_requested_rows(batches, len(order), batch_size)


class MapStream:
    """A function over each batch of a streamed source, once it is on the device."""

    def __init__(self, source: StreamSource, function: Callable[..., Batch | Tensor]) -> None:
        self.source, self.function, self.rows = source, function, source.rows

    def batches(self, order: Tensor, batch_size: int, device: torch.device, drop_last: bool = False) -> Iterator[Batch]:
        given = self.source.batches(order, batch_size, device, drop_last)
        yield from with_requested_rows((as_batch(self.function(*batch)) for batch in given), len(order), batch_size)


def as_batch(result: Batch | Tensor) -> Batch:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def with_rows(batch: Batch, rows: int) -> Batch:
    """Return the batch if a tensor of it has the requested rows, by which the trainer averages. No host sync."""
    tensors = [tensor for tensor in batch if isinstance(tensor, Tensor)]
    if tensors and not any(has_rows(tensor, rows) for tensor in tensors):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise DataMismatch(
            f"{rows} rows were requested, but no tensor of the batch has that many (shapes: {shapes}); "
            f"keep every row of a batch, and leave rows out with subset(source, rows)"
        )
    return batch


def has_rows(tensor: Tensor, rows: int) -> bool:
    """Look at the first dimension, and at the second one of sequences, which may be laid out by step."""
    return rows in (tensor.shape[:2] if tensor.dim() > 2 else tensor.shape[:1])


def with_requested_rows(batches: Iterable[Batch], total: int, batch_size: int) -> Iterator[Batch]:
    for number, batch in enumerate(batches):
        yield with_rows(batch, max(min(batch_size, total - number * batch_size), 0))


def row_numbers(rows: Tensor, limit: int) -> Tensor:
    """Return row numbers, given as such or as a mask with a value for every row of the source."""
    if rows.dtype == torch.bool and rows.shape == (limit,):
        rows = rows.nonzero().view(-1)
    if rows.numel() and (rows.dim() != 1 or rows.dtype == torch.bool or rows.is_floating_point() or rows.is_complex()):
        raise DataMismatch(
            f"{rows.dtype} of shape {tuple(rows.shape)} cannot select rows of a source with {limit} rows; "
            f"use a list of whole numbers, or a mask of {limit} booleans"
        )
    require_rows(rows.numel(), "the subset")
    numbers = rows.to(torch.int64)
    check_range(numbers, limit)
    return numbers


def check_range(rows: Tensor, limit: int) -> None:
    """Check the range of row numbers. Host sync, once when a source is made: an index outside would kill the CUDA
    context later."""
    low, high = int(rows.min()), int(rows.max())
    if low < 0 or high >= limit:
        raise DataMismatch(f"rows {low} … {high} were requested from a source with {limit} rows (0 … {limit - 1})")


def is_resident(source: AnySource) -> TypeGuard[Resident]:
    return hasattr(source, "gather")


def subset(source: AnySource, rows: ArrayLike | Sequence[int] | Sequence[bool]) -> Subset | StreamedSubset:
    """Return some rows of a source, by number or by a mask over all of them; resident or streamed as the source is."""
    try:
        chosen = as_tensor(rows if isinstance(rows, Tensor) else np.asarray(unmasked(rows)))
    except ValueError as error:
        raise DataMismatch(f"lists of different lengths cannot select rows; use whole numbers ({error})") from error
    return Subset(source, chosen) if is_resident(source) else StreamedSubset(source, chosen)  # type: ignore[arg-type]


def mapped(source: AnySource, function: Callable[..., Batch | Tensor]) -> MapSource | MapStream:
    """Apply `function(*batch)` to every batch, on the device."""
    return MapSource(source, function) if is_resident(source) else MapStream(source, function)  # type: ignore[arg-type]


def split(source: AnySource, share: float, seed: int | None = None) -> tuple[AnySource, AnySource]:
    """Split off the first `share` of the rows from the rest; if a seed is given, shuffle them by it first."""
    if not 0.0 < share < 1.0:
        raise EmptySplit(f"a share of {share} leaves one part empty; use a number between 0 and 1")
    count = int(share * source.rows)
    if count == 0 or count == source.rows:
        raise EmptySplit(f"a share of {share} of {source.rows} rows leaves one part empty")
    if seed is None:
        order = torch.arange(source.rows)
    else:
        order = torch.randperm(source.rows, generator=torch.Generator().manual_seed(seed))
    return subset(source, order[:count]), subset(source, order[count:])

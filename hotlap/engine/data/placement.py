"""Where data lives during training: in the device's memory, in the host's, or read as needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotlap.engine.data.errors import DataMismatch, NoDevice
from hotlap.engine.data.memory import Room, in_words, measured
from hotlap.engine.data.readers import Arrays, Reader, blocks_of, bytes_of, empty_like, load_all
from hotlap.engine.data.sources import ArrayLike, Dtypes, Tensors, as_tensor
from hotlap.engine.data.stream import Stream, native, torch_dtype

log = logging.getLogger("hotlap.engine")

Say = Callable[[str], None]


def resident(
    *data: ArrayLike | Reader,
    device: torch.device | str = "auto",
    dtypes: Dtypes | None = None,
    room: Room | None = None,
    say: Say | None = None,
) -> Tensors | Stream:
    """Put data in the fastest place that has room: device memory, else host memory, else streamed. One line says which.

    `data` is tensors and arrays (memory-mapped ones too), or one reader. `device` is "auto" (a GPU if there is one),
    "cpu", "cuda" or "cuda:1". The line goes to `say`, or to the log "hotlap.engine"; the source keeps it in `placed`.
    """
    target = chosen_device(device)
    reader = arrays_of(data) if any(isinstance(values, np.memmap) for values in data) else given_reader(data)
    needed = bytes_of(reader) if reader is not None else bytes_to_move(data, target)
    place, line = decide(needed, target, room or measured(target))
    if place == "device":
        given = data if reader is None else loaded(reader, target)
        source: Tensors | Stream = Tensors(*given, device=target, dtypes=dtypes)
    elif place == "host":
        source = Stream(in_memory(reader or arrays_of(data)), dtypes=dtypes)
    else:
        source = Stream(reader or arrays_of(data), dtypes=dtypes)
    source.placed = line
    if say is not None:
        say(line)
    else:
        log.log(logging.INFO if place == "device" else logging.WARNING, line)
    return source


def chosen_device(device: torch.device | str) -> torch.device:
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    target = torch.device(device)
    if target.type == "cuda" and not torch.cuda.is_available():
        raise NoDevice(f"device={str(device)!r}, but torch sees no GPU; use device='cpu'")
    return target


def decide(needed: int, target: torch.device, room: Room) -> tuple[str, str]:
    """Return "device", "host" or "stream", and the line that says so."""
    size = f"{in_words(needed)} of data"
    if needed <= room.for_device:
        return "device", f"{size}: resident in the memory of {target} ({in_words(room.device)} free)"
    too_large = f"{size}: too large for the memory of {target} ({in_words(room.for_device)} of it may be used for data)"
    if target.type == "cuda" and needed <= room.for_host:
        return "host", f"{too_large}; kept in host memory and copied through pinned buffers"
    return "stream", f"{too_large}; streamed during training"


def given_reader(data: Sequence[Any]) -> Reader | None:
    if len(data) == 1 and hasattr(data[0], "read") and hasattr(data[0], "columns"):
        reader: Reader = data[0]
        return reader
    for values in data:
        if not isinstance(values, Tensor | np.ndarray):
            raise DataMismatch(f"a {type(values).__name__} cannot be used as data; give tensors, arrays or one reader")
    return None


def bytes_to_move(data: Sequence[Any], target: torch.device) -> int:
    """Return the bytes to move: what is already on the target needs no more room."""
    there = [isinstance(values, Tensor) and values.device.type == target.type for values in data]
    return sum(int(values.nbytes) for values, done in zip(data, there, strict=True) if not done)


def loaded(reader: Reader, target: torch.device) -> Sequence[ArrayLike]:
    """Load all rows onto the target; on the way to a GPU only one block at a time is in host memory."""
    if target.type == "cpu":
        return load_all(reader)
    shapes = [((reader.rows, *column.shape), torch_dtype(column.dtype)) for column in reader.columns]
    tensors = [torch.empty(shape, dtype=dtype, device=target) for shape, dtype in shapes]
    for rows in blocks_of(reader):
        block = empty_like(reader, len(rows))
        reader.read(rows, block)
        for tensor, values in zip(tensors, block, strict=True):
            tensor[rows[0] : rows[-1] + 1] = torch.from_numpy(native(values))
    return tensors


def arrays_of(data: Sequence[Any]) -> Arrays:
    return Arrays(*(values.detach().cpu().numpy() if isinstance(values, Tensor) else values for values in data))


def in_memory(reader: Reader) -> Arrays:
    """Load all rows into host memory: mapped files are read once, now."""
    if isinstance(reader, Arrays) and not any(isinstance(array, np.memmap) for array in reader.arrays):
        return reader
    return Arrays(*load_all(reader))


def compact(values: ArrayLike) -> Tensor:
    """Return the same numbers in the smallest type that holds them exactly: bool, uint8, float16, or their own.

    A float tensor of zeros and ones becomes bool, a quarter of its memory. Give the old type as `dtypes` to get it
    back in every batch. Costs one pass over the data.
    """
    tensor = as_tensor(values)
    if tensor.dtype in (torch.bool, torch.uint8) or tensor.numel() == 0:
        return tensor
    for dtype in (torch.bool, torch.uint8, torch.float16):
        if dtype.itemsize < tensor.dtype.itemsize and holds(tensor, dtype):
            return tensor.to(dtype)
    return tensor


def holds(tensor: Tensor, dtype: torch.dtype, block: int = 2**22) -> bool:
    """Return whether a cast there and back changes nothing; blocks bound the memory it takes."""
    flat = tensor.reshape(-1)
    return all(
        torch.equal(values.to(dtype).to(tensor.dtype), values) and not negative_zero(values, dtype)
        for values in torch.split(flat, block)
    )


def negative_zero(values: Tensor, dtype: torch.dtype) -> bool:
    """Look for -0.0, which equals 0.0 but is another number: 1 / -0.0 is -inf."""
    if dtype.is_floating_point or not values.is_floating_point():
        return False
    return bool(((values == 0) & values.signbit()).any())

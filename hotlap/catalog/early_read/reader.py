"""What this entry does on a GPU: mark its queue, copy a number to the host, read a number past the queue."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any, Protocol

SLOTS = 8  # more than the losses remembered at a time


class Reader(Protocol):
    def is_here(self, tensor: Any) -> bool:
        """Whether the tensor lies on a device that must be waited for."""

    def may_mark(self, loss: Any) -> bool: ...

    def stream(self, tensor: Any) -> int: ...

    def copied(self, tensor: Any) -> Any:
        """Return the host tensor that has the value once the queue reaches this place."""

    def mark(self, stream: int) -> Any:
        """Mark this place in the queue."""

    def wait(self, mark: Any) -> None: ...

    def aside(self, tensor: Any, mark: Any) -> Any:
        """Return the value on the host, valid until the next read. Host sync up to the mark."""


class CudaReader:
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._slots: dict[Any, Iterator[Any]] = {}  # by dtype
        self._slots_aside: dict[Any, Any] = {}  # one is enough: the reader takes the value at once
        self._events: Iterator[Any] | None = None
        self._streams: dict[int, Any] = {}
        self._side: Any = None

    def is_here(self, tensor: Any) -> bool:
        return bool(tensor.is_cuda)

    def may_mark(self, loss: Any) -> bool:
        cuda = self._torch._C  # as torch.cuda does after checking that CUDA has started, which it has
        if not loss.is_cuda or loss.get_device() != cuda._cuda_getDevice():
            return False
        # Nothing may be read while a graph is captured, and a search for syncs must see them all.
        return not cuda._cuda_isCurrentStreamCapturing() and not cuda._cuda_get_sync_debug_mode()

    def stream(self, tensor: Any) -> int:
        return int(self._torch._C._cuda_getCurrentRawStream(tensor.get_device()))

    def copied(self, tensor: Any) -> Any:
        dtype = tensor.dtype
        if dtype not in self._slots:
            self._slots[dtype] = cycle([self._pinned(dtype) for _ in range(SLOTS)])
        return next(self._slots[dtype]).copy_(tensor.data, non_blocking=True)

    def _pinned(self, dtype: Any) -> Any:
        return self._torch.empty((), dtype=dtype, pin_memory=True)

    def mark(self, stream: int) -> Any:
        if self._events is None:
            self._events = cycle([self._torch.cuda.Event() for _ in range(SLOTS)])
        if stream not in self._streams:
            self._streams[stream] = self._torch.cuda.current_stream()
        event = next(self._events)
        event.record(self._streams[stream])
        return event

    def wait(self, mark: Any) -> None:
        mark.synchronize()

    def aside(self, tensor: Any, mark: Any) -> Any:
        cuda, dtype = self._torch.cuda, tensor.dtype
        if self._side is None:
            self._side = cuda.Stream()
        if dtype not in self._slots_aside:
            self._slots_aside[dtype] = self._pinned(dtype)
        self._side.wait_event(mark)
        with cuda.stream(self._side):
            slot = self._slots_aside[dtype].copy_(tensor.detach(), non_blocking=True)
        self._side.synchronize()
        return slot

"""Marks between two steps: on the host's clock, or for a model on a GPU, events in its stream.

Nothing here waits for a device: an event is only read once it has completed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

Clock = Callable[[], float]


class HostMark:
    __slots__ = ("_at",)

    def __init__(self, clock: Clock) -> None:
        self._at = clock()

    def has_come(self) -> bool:
        return True

    def until(self, later: HostMark) -> float:
        return later._at - self._at


class DeviceMark:
    __slots__ = ("_event",)

    def __init__(self, torch: Any) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()

    def has_come(self) -> bool:
        return bool(self._event.query())

    def until(self, later: DeviceMark) -> float:
        return float(self._event.elapsed_time(later._event)) * 1e-3


class Marks:
    """Makes the marks of one training: on the device once its optimizer has parameters there."""

    def __init__(self, torch: Any, clock: Clock = time.perf_counter) -> None:
        self._torch, self._clock = torch, clock
        self._on_device = False

    def look_at(self, optimizer: Any) -> None:
        groups = getattr(optimizer, "param_groups", ())
        self._on_device = any(parameter.is_cuda for group in groups for parameter in group["params"])

    def mark(self) -> Any:
        cuda = self._torch.cuda
        if self._on_device and not cuda.is_current_stream_capturing():
            return DeviceMark(self._torch)
        return HostMark(self._clock)

"""The progress of an observed process, shared through a small mapped file, so that no step costs a system call."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

from hotlap.records import private

_LAYOUT = struct.Struct("<BHd5Q")
STARTING, WARMING, TIMING, LOOKING, DONE, STOPPING = range(6)
STATE_NAMES = ("starting", "warming up", "measuring", "looking closer", "done", "stopping")


class Progress(NamedTuple):
    state: int
    rank: int
    fraction: float  # of the measurement, 0 to 1
    steps: int
    batches: int
    backwards: int
    optimizers: int
    loaders: int


class ProgressWriter:
    def __init__(self, path: Path) -> None:
        with private.unsignalled(), path.open("wb+") as file:
            private.tighten(file.fileno())
            file.write(
                bytes(_LAYOUT.size)
            )  # not truncate: writing to a page that a full disk cannot back kills the process
            file.flush()
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)

    def write(self, progress: Progress) -> None:
        _LAYOUT.pack_into(self._map, 0, *progress)


def read_progress(path: Path) -> Progress | None:
    data = path.read_bytes()
    return Progress(*_LAYOUT.unpack(data)) if len(data) == _LAYOUT.size else None

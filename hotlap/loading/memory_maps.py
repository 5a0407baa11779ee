"""Which memory of this process others may write into, and which files it may write through memory or what is open.

Only Linux tells. Elsewhere nothing is known to be shared but what its owner calls so.
"""

from __future__ import annotations

import fcntl
import os
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from typing import Any

MAPS, OPEN = "/proc/self/maps", Path("/proc/self/fd")


class SharedRanges:
    """Ranges of addresses that are shared between processes, as they are now."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for line in _lines():
            addresses, modes = line.split(" ", 2)[:2]
            if modes[3] == "s":
                start, end = addresses.split("-")
                self._starts.append(int(start, 16))
                self._ends.append(int(end, 16))

    def holds(self, thing: Any) -> bool:
        """The memory of a tensor or array."""
        if hasattr(thing, "is_shared") and thing.is_shared():
            return True
        at = _address(thing)
        place = bisect_right(self._starts, at) - 1
        return place >= 0 and at < self._ends[place]


def writable_files() -> set[str]:
    """Files that are mapped into memory to be written: a write leaves no trace in the file's times."""
    found = set()
    for line in _lines():
        parts = line.rstrip("\n").split(None, 5)
        if len(parts) == 6 and parts[1][1] == "w" and parts[1][3] == "s" and parts[5].startswith(os.sep):
            found.add(parts[5])
    return found


def open_files() -> set[str]:
    """Files that are open to be written: of a write through what was opened before we listened, nobody tells."""
    found = set()
    for entry in OPEN.iterdir() if OPEN.is_dir() else ():
        with suppress(OSError):  # closed meanwhile, as the one that lists them is
            if fcntl.fcntl(int(entry.name), fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                found.add(str(entry.readlink()))
    return found


def _lines() -> list[str]:
    try:
        with open(MAPS, encoding="utf-8", errors="surrogateescape") as maps:  # noqa: PTH123 asked at each epoch
            return maps.readlines()
    except OSError:
        return []


def _address(thing: Any) -> int:
    if hasattr(thing, "data_ptr"):
        try:
            return int(thing.data_ptr())
        except RuntimeError:  # a tensor without memory of its own
            return 0
    if hasattr(thing, "__array_interface__"):
        return int(thing.__array_interface__["data"][0])
    return 0

"""The memory of this process that others may write to, and the files it may write through mappings or descriptors.

Only Linux reveals this. Elsewhere memory counts as shared only if its owner says so.
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
    """The address ranges that are now shared between processes."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for line in _lines():
            addresses, modes = line.split(" ", 2)[:2]
            if modes[3] == "s":
                start, end = addresses.split("-")
                self._starts.append(int(start, 16))
                self._ends.append(int(end, 16))

    def holds(self, array: Any) -> bool:
        """Return whether the memory of the tensor or array is shared."""
        if hasattr(array, "is_shared") and array.is_shared():
            return True
        at = _address(array)
        place = bisect_right(self._starts, at) - 1
        return place >= 0 and at < self._ends[place]


def writable_files() -> set[str]:
    """Return the files mapped into memory for writing: such writes do not show in a file's times."""
    found = set()
    for line in _lines():
        parts = line.rstrip("\n").split(None, 5)
        if len(parts) == 6 and parts[1][1] == "w" and parts[1][3] == "s" and parts[5].startswith(os.sep):
            found.add(parts[5])
    return found


def open_files() -> set[str]:
    """Return the files open for writing: a write to one opened before our audit hook goes unnoticed."""
    found = set()
    for entry in OPEN.iterdir() if OPEN.is_dir() else ():
        with suppress(OSError):  # closed meanwhile, like the one that lists them
            if fcntl.fcntl(int(entry.name), fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                found.add(str(entry.readlink()))
    return found


def _lines() -> list[str]:
    try:
        with open(MAPS, encoding="utf-8", errors="surrogateescape") as maps:  # noqa: PTH123 called at each epoch
            return maps.readlines()
    except OSError:
        return []


def _address(array: Any) -> int:
    if hasattr(array, "data_ptr"):
        try:
            return int(array.data_ptr())
        except RuntimeError:  # a tensor without memory of its own
            return 0
    if hasattr(array, "__array_interface__"):
        return int(array.__array_interface__["data"][0])
    return 0

"""The temporary files of a process that are still there after its end."""

from __future__ import annotations

import stat
from contextlib import suppress
from pathlib import Path

from hotlap.records.traces import Temporary

MIB = 1 << 20


def left_behind(list_: Path) -> Temporary:
    """Return how many of the listed files exist, and their size."""
    files, size = 0, 0
    for path in _paths(list_):
        with suppress(OSError, ValueError):
            found = Path(path).lstat()
            if stat.S_ISREG(found.st_mode):
                files, size = files + 1, size + found.st_size
    return Temporary(files=files, mb=size / MIB)


def _paths(list_: Path) -> set[str]:
    with suppress(OSError):
        return set(list_.read_text(encoding="utf-8", errors="replace").split("\n")) - {""}
    return set()

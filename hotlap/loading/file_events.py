"""What the kernel tells of files that are written, by this process or another: Linux only.

Checking thousands of files before a batch takes longer than the batch. Elsewhere, and where the kernel watches no more
folders, they are checked in turn (see files.py).
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any

HEADER = struct.Struct("iIII")  # watch, what happened, a cookie, and the length of the name that follows
WRITTEN = 0x2 | 0x4 | 0x8  # contents and attributes
NAMED = 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800  # files that come, go or are renamed, and the folder itself
LOST = 0x4000  # more has happened than the kernel remembers
MOST_FOLDERS = 4096
READ_AT_ONCE = 1 << 16
KIND = "anon_inode:inotify"


class FileEvents:
    """Watches folders. It is of the process that made it: a fork shares the descriptor, and must leave it alone."""

    def __init__(self, names: Iterable[str], paths: Iterable[str], folders: Iterable[str]) -> None:
        """Watch files and folders by their names, and by the paths where links lead; raise OSError if that fails."""
        several = list(names)
        real = {folder: os.path.realpath(folder) for folder in set(map(os.path.dirname, several))}
        links = (os.path.join(real[os.path.dirname(name)], os.path.basename(name)) for name in several)
        self._paths, self._home = {*paths, *links}, os.getpid()
        watched = {*map(os.path.dirname, self._paths), *map(os.path.realpath, folders)}
        if len(watched) > MOST_FOLDERS:
            raise OSError("too many folders")
        self._folders: dict[int, str] = {}
        self._descriptor = _checked(_kernel().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        try:
            for folder in watched:
                watch = _kernel().inotify_add_watch(self._descriptor, os.fsencode(folder), WRITTEN | NAMED)
                self._folders[_checked(watch)] = folder
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0 and os.getpid() == self._home:
            os.close(descriptor)

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):
            self.close()

    def have_come(self) -> bool:
        """Return whether one of the files may have changed since the last call. Raise OSError if nobody can tell, as
        where the program has closed all descriptors and may have its own under this number.
        """
        if os.getpid() != self._home or os.readlink(f"/proc/self/fd/{self._descriptor}") != KIND:
            self._descriptor = -1
            raise OSError("the descriptor is not ours any more")
        found = False
        with suppress(BlockingIOError):
            while True:
                found |= self._concern_us(os.read(self._descriptor, READ_AT_ONCE))
        return found

    def _concern_us(self, events: bytes) -> bool:
        at, found = 0, False
        while at < len(events):
            watch, what, _, length = HEADER.unpack_from(events, at)
            name = os.fsdecode(events[at + HEADER.size : at + HEADER.size + length].rstrip(b"\0"))
            folder = self._folders.get(watch, "")
            found |= bool(what & LOST) or os.path.join(folder, name) in self._paths
            found |= bool(what & NAMED) and folder in self._paths
            at += HEADER.size + length
        return found


@lru_cache(maxsize=1)
def _kernel() -> Any:
    if not sys.platform.startswith("linux"):
        raise OSError("only Linux tells of changes to files in this way")
    return ctypes.CDLL(None, use_errno=True)


def _checked(number: int) -> int:
    if number < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return number

"""The files that a dataset may read, and whether one of them has changed.

The file of an item is computed when the item is fetched. So all files are watched whose names the code reads, and all
files in folders whose names it reads.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from threading import get_ident
from typing import Any

from hotlap.loading.memory_maps import open_files, writable_files
from hotlap.loading.unsuited import Unfit

MOST_FILES = 300_000
MOST_SECONDS = 1.0  # for listing them at first
AT_EACH_BATCH = 100e-6  # seconds of checking
LONGEST = 4096  # characters in a name
MOST_WRITTEN = 1000
# Audit events that change names.
CHANGES = frozenset(f"os.{name}" for name in "rename remove truncate mkdir rmdir link symlink".split())
CODE = (".py", ".pyc", ".so", ".pyi")
OF_THE_SYSTEM = (
    *(sys.prefix + os.sep, sys.base_prefix + os.sep, "/proc/", "/sys/", "/etc/", "/usr/lib", "/usr/share/zoneinfo/"),
    *("/dev/null", "/dev/zero"),
)
# Of the kernel's events, on Linux
HEADER = struct.Struct("iIII")  # watch, what happened, a cookie, and the length of the name that follows
WRITTEN = 0x2 | 0x4 | 0x8  # contents and attributes
NAMED = 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800  # files that come, go or are renamed, and the folder itself
LOST = 0x4000  # more has happened than the kernel remembers
MOST_FOLDERS = 4096
READ_AT_ONCE = 1 << 16
KIND = "anon_inode:inotify"
Seen = tuple[int, int, int, int, int]


class Files:
    """A snapshot of the watched files, as they are now."""

    def __init__(self, named: Iterable[str], in_code: Iterable[str], folders: Iterable[str] = ()) -> None:
        """`folders` are what names begin with that compiled code opens: no audit event tells which files it reads."""
        here = os.getcwd()
        until = time.perf_counter() + MOST_SECONDS
        self._seen: dict[str, Seen] = {}
        self._folders: list[str] = []
        for name in dict.fromkeys(named):
            self._add(name, here, until)
        for text in in_code:
            if "." in text or os.sep in text:
                self._add(text, here, until)
        if not self._seen:
            raise Unfit("it reads files whose location is not known")
        self._names = list(self._seen)
        self._paths = {os.path.realpath(name) for name in self._names}
        for begins in folders:
            folder = begins if os.path.isdir(begins) else os.path.dirname(begins)
            if not folder or os.path.realpath(folder) not in self._paths:
                raise Unfit(f"it reads files by names that begin with {begins!r}, in a folder that is not watched")
        self._turn, self._in_turn = 0, False  # whether there are more than can be checked before a batch
        self.found_late = False  # a change that another process may have made some batches ago
        if (held := self._held_to_write()) is not None:
            raise Unfit(f"the program has {held} open or memory-mapped for writing")
        self._events: FileEvents | None = None
        with suppress(OSError):
            self._events = FileEvents(self._names, self._paths, self._folders)
        _listen()
        self._heard = _forgotten + len(_written)

    def _add(self, name: str, here: str, until: float) -> None:
        if not name or len(name) > LONGEST or "\0" in name:
            return
        try:
            found = os.stat(name)
        except OSError:
            return
        if os.path.isdir(name):
            path = os.path.realpath(name)
            if not (here == path or here.startswith(path.rstrip(os.sep) + os.sep)):  # the program writes there too
                self._seen[name] = _as_seen(found)
                self._folders.append(name)
                self._add_folder(name, until)
        else:
            self._seen[name] = _as_seen(found)

    def _add_folder(self, name: str, until: float) -> None:
        """Add files by the names that the program uses: links may be redirected. A folder changes with its entries."""
        for entry in _entries_in(name):
            try:
                self._seen[entry.path] = _as_seen(entry.stat())
            except OSError:
                continue
            if entry.is_dir():
                self._folders.append(entry.path)
            if len(self._seen) > MOST_FILES or time.perf_counter() > until:
                raise Unfit("it may read more files than can be watched")

    def covers(self, path: str) -> bool:
        return path in self._seen or is_no_data(path) or os.path.realpath(path) in self._paths

    def differ(self) -> str | None:
        """Check all files at the start of an epoch, and return one that has changed."""
        if (found := self._written_by_us() or self._held_to_write()) is None:
            found = self._looked_at(None)
            self.found_late = found is not None and self._in_turn
        return found

    def differ_now(self) -> str | None:
        """Check the files this process has written to, and some others, before a batch."""
        if (found := self._written_by_us()) is None:
            have_come = self._have_events()
            found = self._looked_at(None if have_come else time.perf_counter() + AT_EACH_BATCH)
            self.found_late = found is not None and self._in_turn and not have_come
        return found

    def _have_events(self) -> bool:
        if self._events is None:
            return False
        try:
            return self._events.have_come()
        except OSError:
            self._events = None
            return False

    def _written_by_us(self) -> str | None:
        news = _written[self._heard - _forgotten :] if self._heard >= _forgotten else list(self._names)
        self._heard = _forgotten + len(_written)
        for name in news:
            path = os.path.realpath(name)
            if path in self._paths or os.path.dirname(path) in self._paths:  # a folder changes with its entries
                return str(name)
        return None

    def _held_to_write(self) -> str | None:
        return next(iter(self._paths & (writable_files() | open_files())), None)

    def _looked_at(self, until: float | None) -> str | None:
        count = len(self._names)
        for step in range(count):
            name = self._names[(self._turn + step) % count]
            try:
                if _as_seen(os.stat(name)) != self._seen[name]:
                    return name
            except OSError:
                return name
            if until is not None and time.perf_counter() > until:
                self._turn, self._in_turn = (self._turn + step + 1) % count, True
                return None
        return None


def is_no_data(path: str) -> bool:
    """Return whether the path is code or part of the system."""
    return path.endswith(CODE) or os.path.realpath(path).startswith(OF_THE_SYSTEM)


_written: list[str] = []  # names that this process has opened for writing, renamed or removed
_forgotten = 0
_listening = False


def _listen() -> None:
    """Install the audit hook, once and only when needed: it stays as long as the process."""
    global _listening
    if not _listening:
        _listening = True
        sys.addaudithook(_hear)


_reading: dict[int, list[str]] = {}  # by thread: the names it has opened for reading


@contextmanager
def read_files() -> Iterator[list[str]]:
    """Collect the files that this thread opens for reading through Python."""
    _listen()
    opened: list[str] = []
    thread = get_ident()
    before, _reading[thread] = _reading.get(thread), opened
    try:
        yield opened
    finally:
        if before is None:
            del _reading[thread]
        else:
            _reading[thread] = before
            before += opened


def _hear(event: str, args: tuple[object, ...]) -> None:
    global _forgotten
    if event == "open":
        flags = args[2]
        if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            if _reading and (opened := _reading.get(get_ident())) is not None and isinstance(args[0], str | bytes):
                opened.append(os.fsdecode(args[0]))
            return
        names = args[:1]
    elif event in ("os.listdir", "os.scandir"):
        if _reading and (opened := _reading.get(get_ident())) is not None:
            opened.append(os.fsdecode(args[0]) if isinstance(args[0], str | bytes) else os.curdir)
        return
    elif event in CHANGES:
        names = args[:2]
    else:
        return
    _written.extend(os.fsdecode(name) for name in names if isinstance(name, str | bytes))
    if len(_written) > MOST_WRITTEN:
        _forgotten += len(_written)
        _written.clear()


def _entries_in(path: str) -> Iterator[os.DirEntry[str]]:
    waiting = [path]
    while waiting:
        try:
            entries = list(islice(os.scandir(waiting.pop()), MOST_FILES))
        except OSError:
            continue
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)


def _as_seen(found: os.stat_result) -> Seen:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev


class FileEvents:
    """What the kernel tells of files that are written, by this process or another: Linux only.

    Checking thousands of files before a batch takes longer than the batch. Elsewhere, and where the kernel watches no
    more folders, they are checked in turn. It is of the process that made it: a fork shares the descriptor, and must
    leave it alone.
    """

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

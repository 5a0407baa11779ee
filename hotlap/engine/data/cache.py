"""Preprocessed arrays on disk, found by what they were made from.

The key is a hash of the inputs, of the function that makes the arrays (its source and code, what it uses of a function
around it, the plain values it reads from its module, and a version), and of its arguments. An input file is identified
by its content ("content", the default, which reads all of it) or by its size, time and sixteen blocks of its content
("sample": fast for huge files, but blind to a change that keeps all three). Anything else that determines the result,
such as a helper the function calls or an object of a class, belongs in `version`.

Several processes may request an entry at once: one makes it under a lock, the others wait and read it. An entry appears
by one rename, with a checksum of every file, and disappears by one; a torn or damaged one is made again. Its files are
mapped before they are checked, and what is mapped stays readable when another process removes the entry. A lock ends
with its process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hotlap.engine.data.errors import DataError, DataMismatch
from hotlap.engine.data.keys import key_of
from hotlap.engine.data.memory import GIB
from hotlap.engine.data.readers import Array, Arrays, Reader, blocks_of, empty_like, unmasked

log = logging.getLogger("hotlap.engine")

ENTRY = "entry.json"
BLOCK = 2**22
Make = Callable[..., Mapping[str, Any]]
Fill = Callable[[Path], None]
Mode = Literal["r", "c"]  # of a mapped file: read only, or with changes that stay in this process


def default_folder() -> Path:
    """Return HOTLAP_CACHE, or the cache folder of the platform."""
    if named := os.environ.get("HOTLAP_CACHE"):
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "hotlap" / "engine"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hotlap" / "engine"


class Cache:
    """A folder of entries; beyond `limit_bytes` the least recently used are removed."""

    def __init__(self, folder: Path | str | None = None, limit_bytes: int = 20 * GIB) -> None:
        self._named = folder is not None  # a named folder may be shared; the one in the home may not
        self.folder = Path(folder) if folder is not None else default_folder()
        self.limit_bytes = limit_bytes

    def arrays(
        self,
        make: Make,
        *,
        inputs: Sequence[Path | str] = (),
        arguments: Mapping[str, Any] | None = None,
        version: str = "",
        identity: str = "content",
    ) -> dict[str, Array]:
        """Return the dict of arrays that `make(**arguments)` returns, memory-mapped from disk if it was made before."""
        given = dict(arguments or {})
        key = key_of(make, inputs, given, version, identity)
        maker = Maker(make, given)
        try:
            return self.entry(key, maker.fill, "c")
        except OSError as error:
            if maker.failed:  # it was an input of the function that could not be read, not the cache
                raise
            log.warning("cannot write to the cache %s (%s): made for this run alone", self.folder, error)
            return maker.made()

    def entry(self, key: str, fill: Fill, mode: Mode) -> dict[str, Array]:
        """Return the arrays of this key, memory-mapped; `fill(folder)` writes them if they are missing or damaged."""
        target = self.folder / key
        if (found := opened(target, mode)) is not None:
            return found
        with self._locked(key):
            if (found := opened(target, mode)) is not None:  # another process made it while we waited
                return found
            made = mapped_files(target, self._make(target, fill), mode)
        self.prune(keep=key)
        return made

    def _make(self, target: Path, fill: Fill) -> list[str]:
        """Make the entry, and return the names of its files."""
        for leftover in self.folder.glob(f"{target.name}.*.tmp"):  # of a process that was killed: we hold the lock
            shutil.rmtree(leftover, ignore_errors=True)
        if target.exists():
            log.warning("the cache entry %s is damaged: making it again", target)
            shutil.rmtree(target)
        temporary = self.folder / f"{target.name}.{os.getpid()}.tmp"
        temporary.mkdir()
        try:
            fill(temporary)
            names = seal(temporary)
            temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync_folder(self.folder)
        return names

    @contextlib.contextmanager
    def _locked(self, key: str, wait: bool = True) -> Iterator[None]:
        """Hold an exclusive lock that ends with the process; without `wait`, raise BlockingIOError if it is held."""
        self.folder.mkdir(0o777 if self._named else 0o700, parents=True, exist_ok=True)
        path = self.folder / f"{key}.lock"
        descriptor = lock_file(path, wait)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # while held: whoever waits sees that the file is another one
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a process forked meanwhile has it open too
            os.close(descriptor)

    def prune(self, keep: str = "") -> list[str]:
        """Remove the least recently used entries until the rest fits, and return their names; locked ones stay."""
        self._clear_left()
        sizes = sizes_by_use(self.folder)
        total, gone = sum(sizes.values()), []
        for name, size in sizes.items():
            if total <= self.limit_bytes:
                break
            if name != keep and self._remove(name):
                total -= size
                gone.append(name)
        return gone

    def _remove(self, name: str) -> bool:
        """Remove an entry, by a rename first: a reader finds it whole or not at all. False if its lock is held."""
        leftover = self.folder / f"{name}.{os.getpid()}.tmp"
        with contextlib.suppress(OSError), self._locked(name, wait=False):
            (self.folder / name).rename(leftover)
            shutil.rmtree(leftover, ignore_errors=True)
            return True
        return False

    def _clear_left(self) -> None:
        """Remove the temporary folders of processes that were killed: nobody holds their locks."""
        for leftover in self.folder.glob("*.tmp"):
            with contextlib.suppress(OSError), self._locked(leftover.name.partition(".")[0], wait=False):
                shutil.rmtree(leftover, ignore_errors=True)


class Maker:
    """Calls the function that makes the arrays, once, and knows whether a failure was its own."""

    def __init__(self, make: Make, given: Mapping[str, Any]) -> None:
        self.make, self.given = make, given
        self.arrays: dict[str, Array] | None = None
        self.failed = False

    def made(self) -> dict[str, Array]:
        if self.arrays is None:
            self.failed = True
            result: Any = self.make(**self.given)
            if not isinstance(result, Mapping):
                kind = type(result).__name__
                raise DataMismatch(f"the cached function returned a value of type {kind}; return a dict of arrays")
            self.arrays = {name: array_of(name, values) for name, values in result.items()}
            self.failed = False
        return self.arrays

    def fill(self, folder: Path) -> None:
        for name, array in self.made().items():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)


def array_of(name: str, values: Any) -> Array:
    if not isinstance(name, str) or not name.replace("_", "").replace("-", "").isalnum():
        raise DataMismatch(f"{name!r} is not a valid name for a cached array; use letters, digits, - and _")
    array = np.asarray(unmasked(values))
    if array.dtype.hasobject:
        raise DataMismatch(f"{name!r} holds Python objects; only arrays of numbers or fixed text can be cached")
    return array


def lock_file(path: Path, wait: bool) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        except FileNotFoundError:
            pass  # removed by its holder between the two looks
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def seal(folder: Path) -> list[str]:
    """Write the checksums and flush everything to disk before the entry gets its name; return its files' names."""
    files = {}
    for path in sorted(folder.iterdir()):
        files[path.name] = {"size": path.stat().st_size, "crc32": checksum(path)}
        sync_file(path)
    entry = folder / ENTRY
    entry.write_text(json.dumps({"made": time.time(), "files": files}))
    sync_file(entry)
    return list(files)


def opened(folder: Path, mode: Mode) -> dict[str, Array] | None:
    """Return the arrays of an entry and mark it as used; None if it is missing, damaged or being removed."""
    try:
        entry = (folder / ENTRY).read_text()
        files = json.loads(entry)["files"]
        arrays = mapped_files(folder, files, mode)
        # Read again afterwards: the entry that was checked is the one that was mapped.
        if not whole(folder, files) or (folder / ENTRY).read_text() != entry:
            return None
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError):
        return None
    with contextlib.suppress(OSError):  # removed meanwhile, or in a read-only folder
        os.utime(folder / ENTRY)
    return arrays


def mapped_files(folder: Path, names: Iterable[str], mode: Mode) -> dict[str, Array]:
    return {Path(name).stem: np.load(folder / name, mmap_mode=mode, allow_pickle=False) for name in names}


def whole(folder: Path, files: Mapping[str, Any]) -> bool:
    """Return whether every file is as it was written."""
    return all(
        (folder / name).stat().st_size == expected["size"] and checksum(folder / name) == expected["crc32"]
        for name, expected in files.items()
    )


def sizes_by_use(folder: Path) -> dict[str, int]:
    """Return the bytes of every entry, least recently used first; what other processes remove meanwhile is skipped."""
    found = []
    for path in folder.glob(f"*/{ENTRY}"):
        if path.parent.suffix != ".tmp":
            with contextlib.suppress(OSError):
                size = sum(file.stat().st_size for file in path.parent.iterdir())
                found.append((path.stat().st_mtime, path.parent.name, size))
    return {name: size for _, name, size in sorted(found)}


def checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            value = zlib.crc32(block, value)
    return value


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def stored(reader: Reader, cache: Cache, inputs: Sequence[Path | str], identity: str = "content") -> Arrays:
    """Store a reader's rows as memory-mapped arrays, written once in blocks: fast access to what is slow to decode."""
    if not inputs:
        raise DataError("inputs is empty; name the files that the reader reads: they are the key of what is stored")
    key = key_of(stored, inputs, {"columns": [[list(c.shape), str(c.dtype)] for c in reader.columns]}, "1", identity)

    def fill(folder: Path) -> None:
        maps = [
            np.lib.format.open_memmap(folder / f"{number}.npy", "w+", column.dtype, (reader.rows, *column.shape))
            for number, column in enumerate(reader.columns)
        ]
        for rows in blocks_of(reader):
            block = empty_like(reader, len(rows))
            reader.read(rows, block)
            for target, values in zip(maps, block, strict=True):
                target[rows[0] : rows[-1] + 1] = values
        for target in maps:
            target.flush()

    arrays = cache.entry(key, fill, "r")
    return Arrays(*(arrays[str(number)] for number in range(len(reader.columns))))

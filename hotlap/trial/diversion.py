"""Diverts every Python call that writes, reads or looks up a file by name to the shadow.

Files written by other programs, or by libraries that open files outside Python, are not seen, except for those named in
`_foreign`: torch, safetensors, h5py, sqlite3.
"""

from __future__ import annotations

import builtins
import io
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hotlap.patch.imports import when_imported
from hotlap.patch.ledger import Ledger
from hotlap.trial.order import PLACES, TEMPORARY
from hotlap.trial.shadow import Shadow

CREATES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
READERS = "stat lstat access readlink listxattr getxattr".split()
CHANGERS = "chmod chown utime truncate setxattr removexattr".split()
REMOVERS = "remove unlink rmdir".split()
CACHES = (".cache", ".triton", ".nv", ".config", ".matplotlib", ".keras", ".torch")
CACHE_VARIABLES = ("XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TMPDIR")


def shadow_of(scratch: Path, folder: Path, home: Path) -> Shadow:
    """Divert everything written, except for temporary files, caches, devices and hotlap's own run folders."""
    caches = [Path(os.environ[name]) for name in CACHE_VARIABLES if os.environ.get(name)]
    user = Path(os.path.expanduser("~"))  # noqa: PTH111 Path.home() raises where there is none
    devices = [Path(name) for name in ("/dev", "/proc", "/sys", "/run")]
    temporary = [Path(tempfile.gettempdir()), Path("/dev/shm")]
    left = [*temporary, *devices, *caches, *(user / name for name in CACHES), home]
    found = Shadow(scratch, [folder], left)
    found.places = str(home / PLACES)
    found.note_temporary(temporary, home / TEMPORARY)
    return found


def divert(shadow: Shadow, ledger: Ledger) -> None:
    _Diversion(shadow, ledger).install()


def note_ours(shadow: Shadow) -> None:
    """Note the temporary files that an optimisation writes itself: in a process we entered, `open` is our own there."""
    own = globals()["__builtins__"]
    if not isinstance(own, dict) or own is vars(builtins):
        return
    original = own["open"]

    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if any(letter in mode for letter in "wax+"):
            shadow.written(file)
        return original(file, mode, *args, **kwargs)

    own["open"] = open_


class _Diversion:
    def __init__(self, shadow: Shadow, ledger: Ledger) -> None:
        self._shadow, self._ledger = shadow, ledger

    def install(self) -> None:
        self._wrap(builtins, "open", self._open)
        self._wrap(io, "open", self._open)
        self._on_os("open", self._os_open)
        self._on_os("mkdir", self._mkdir)
        for name in READERS:
            self._on_os(name, self._reader)
        for name in CHANGERS:
            self._on_os(name, self._changer)
        for name in REMOVERS:
            self._on_os(name, self._remover)
        for name in ("rename", "replace"):
            self._on_os(name, self._renamer)
        self._on_os("symlink", self._linker)
        self._on_os("link", self._hard_linker)
        self._on_os("listdir", self._listdir)
        self._on_os("scandir", self._scandir)
        self._on_os("chdir", self._chdir)
        self._on_os("getcwd", self._getcwd)
        self._wrap(shutil, "rmtree", self._rmtree)
        _foreign(self._shadow, self._ledger)

    def _wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        def layer(original: Any) -> Any:
            layered = make(original)
            layered.__name__, layered.__doc__ = name, original.__doc__
            layered.__wrapped__ = original
            return layered

        self._ledger.wrap(owner, name, layer)

    def _on_os(self, name: str, make: Callable[[Any], Any]) -> None:
        if not hasattr(os, name):
            return
        self._wrap(os, name, make)
        accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 holds its own references to the functions
        if accessor is not None and name in vars(accessor):
            function = io.open if name == "open" else getattr(os, name)
            self._ledger.wrap(accessor, name, lambda original: staticmethod(function))

    def _open(self, original: Any) -> Any:
        shadow = self._shadow

        def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if shadow.inside or isinstance(file, int):
                return original(file, mode, *args, **kwargs)
            if not any(letter in mode for letter in "wax+"):
                shadow.noted(file)
                return original(shadow.reading(file), mode, *args, **kwargs)
            there = shadow.existing(file) if "x" in mode else None
            place = shadow.writing(file, fresh="w" in mode) if there is None else there
            return original(place, mode, *args, **kwargs)

        return open_

    def _os_open(self, original: Any) -> Any:
        shadow = self._shadow

        def open_(path: Any, flags: int, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            if shadow.inside or dir_fd is not None:
                return original(path, flags, *args, dir_fd=dir_fd, **kwargs)
            if not flags & CREATES:
                return original(shadow.reading(path), flags, *args, **kwargs)
            there = shadow.existing(path) if flags & os.O_EXCL else None
            place = shadow.writing(path, fresh=bool(flags & os.O_TRUNC)) if there is None else there
            return original(place, flags, *args, **kwargs)

        return open_

    def _mkdir(self, original: Any) -> Any:
        shadow = self._shadow

        def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
            if shadow.inside or kwargs.get("dir_fd") is not None:
                original(path, *args, **kwargs)
                return
            there = shadow.existing(path)
            original(shadow.writing(path, fresh=True) if there is None else there, *args, **kwargs)

        return mkdir

    def _reader(self, original: Any) -> Any:
        shadow = self._shadow

        def look(path: Any, *args: Any, **kwargs: Any) -> Any:
            if shadow.inside or kwargs.get("dir_fd") is not None:
                return original(path, *args, **kwargs)
            return original(shadow.reading(path), *args, **kwargs)

        return look

    def _changer(self, original: Any) -> Any:
        shadow = self._shadow

        def change(path: Any, *args: Any, **kwargs: Any) -> Any:
            if shadow.inside or kwargs.get("dir_fd") is not None or not shadow.diverts(path):
                return original(path, *args, **kwargs)
            there = shadow.existing(path)
            return original(path if there is None else shadow.writing(path, fresh=False), *args, **kwargs)

        return change

    def _remover(self, original: Any) -> Any:
        shadow = self._shadow

        def remove(path: Any, *args: Any, **kwargs: Any) -> None:
            if shadow.inside or kwargs.get("dir_fd") is not None or not shadow.diverts(path):
                original(path, *args, **kwargs)
            else:
                shadow.remove(path, original)

        return remove

    def _renamer(self, original: Any) -> Any:
        shadow = self._shadow

        def rename(src: Any, dst: Any, **kwargs: Any) -> None:
            between = kwargs.get("src_dir_fd") is not None or kwargs.get("dst_dir_fd") is not None
            if shadow.inside or between or not (shadow.diverts(src) or shadow.diverts(dst)):
                original(src, dst, **kwargs)
                if not (shadow.inside or between):
                    shadow.written(dst)
            else:
                shadow.rename(src, dst)

        return rename

    def _linker(self, original: Any) -> Any:
        shadow = self._shadow

        def symlink(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            if shadow.inside:
                original(src, dst, *args, **kwargs)
                return
            there = shadow.existing(dst)
            original(src, shadow.writing(dst, fresh=True) if there is None else there, *args, **kwargs)

        return symlink

    def _hard_linker(self, original: Any) -> Any:
        shadow = self._shadow

        def link(src: Any, dst: Any, **kwargs: Any) -> None:
            if shadow.inside or not shadow.diverts(dst):
                original(src, dst, **kwargs)
            elif (there := shadow.existing(dst)) is not None:
                original(src, there, **kwargs)
            else:
                shutil.copy2(src, dst)  # a link would let the program write to the file itself

        return link

    def _listdir(self, original: Any) -> Any:
        shadow = self._shadow

        def listdir(path: Any = ".") -> list[Any]:
            if shadow.inside:
                return list(original(path))
            places = shadow.listed(path)
            if len(places) == 1 and places[0] is path:
                names = list(original(path))
            else:
                names = list(dict.fromkeys(name for place in places for name in original(place)))
            return [name for name in names if isinstance(path, int) or not shadow.is_gone(path, name)]

        return listdir

    def _scandir(self, original: Any) -> Any:
        shadow = self._shadow

        def scandir(path: Any = ".") -> Any:
            if shadow.inside or isinstance(path, int):
                return original(path)
            places = shadow.listed(path)
            found: dict[Any, Any] = {}
            for place in places:
                with original(place) as entries:
                    for entry in entries:
                        found.setdefault(entry.name, entry)
            return _Entries([entry for name, entry in found.items() if not shadow.is_gone(path, name)])

        return scandir

    def _chdir(self, original: Any) -> Any:
        shadow = self._shadow

        def chdir(path: Any) -> None:
            original(path if shadow.inside else shadow.listed(path)[-1])  # its own place where it has one

        return chdir

    def _getcwd(self, original: Any) -> Any:
        shadow = self._shadow
        return lambda: original() if shadow.inside else shadow.unshadowed(original())

    def _rmtree(self, original: Any) -> Any:
        shadow = self._shadow

        def rmtree(path: Any, *args: Any, **kwargs: Any) -> None:
            if shadow.inside or not shadow.diverts(path):
                original(path, *args, **kwargs)
            else:
                shadow.remove(path, lambda place: original(place, *args, **kwargs))

        return rmtree


class _Entries:
    """Stands in for the result of os.scandir: an iterator that can be closed."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def close(self) -> None:
        self._entries = iter(())

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _foreign(shadow: Shadow, ledger: Ledger) -> None:
    """Divert libraries that open files without Python, by module, function, path argument, and whether it writes."""
    calls = (
        ("torch", "save", 1, "f", True),
        ("torch", "load", 0, "f", False),
        ("torch.jit", "save", 1, "f", True),
        ("torch.jit", "load", 0, "f", False),
        ("safetensors", "serialize_file", 1, "filename", True),
        ("safetensors", "safe_open", 0, "filename", False),
    )
    for module, name, position, keyword, writes in calls:
        layer = _path_argument(shadow, position, keyword, writes)
        when_imported(module, _wrapping(ledger, name, layer))
    when_imported("h5py", lambda h5py: ledger.wrap(h5py.File, "__init__", _h5_file(shadow)))
    when_imported("sqlite3", _wrapping(ledger, "connect", _database(shadow)))


def _wrapping(ledger: Ledger, name: str, layer: Any) -> Callable[[Any], None]:
    return lambda module: ledger.wrap(module, name, layer)


def _path_argument(shadow: Shadow, position: int, keyword: str, writes: bool) -> Callable[[Any], Any]:
    def place(path: Any) -> Any:
        if not isinstance(path, str | bytes | os.PathLike):
            return path  # an open file
        return shadow.writing(path, fresh=True) if writes else shadow.reading(path)

    def layer(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if keyword in kwargs:
                kwargs[keyword] = place(kwargs[keyword])
            elif len(args) > position:
                args = (*args[:position], place(args[position]), *args[position + 1 :])
            return original(*args, **kwargs)

        call.__name__, call.__doc__ = getattr(original, "__name__", "call"), original.__doc__
        call.__wrapped__ = original  # type: ignore[attr-defined]
        return call

    return layer


def _h5_file(shadow: Shadow) -> Callable[[Any], Any]:
    def layer(original: Any) -> Any:
        def __init__(self: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:  # noqa: N807
            if isinstance(name, str | bytes | os.PathLike):
                name = shadow.reading(name) if mode == "r" else shadow.writing(name, fresh=mode == "w")
            original(self, name, mode, *args, **kwargs)

        return __init__

    return layer


def _database(shadow: Shadow) -> Callable[[Any], Any]:
    def layer(original: Any) -> Any:
        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            named = os.fsdecode(database) not in ("", ":memory:") and not kwargs.get("uri")
            return original(shadow.writing(database, fresh=False) if named else database, *args, **kwargs)

        return connect

    return layer

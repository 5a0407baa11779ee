"""Maps the paths a program writes to a scratch folder, and the paths it reads to whichever place holds them now.

The scratch folder mirrors the paths that were written. A path is read there if it exists there, else from its own
place. An existing file that the program removes is remembered as gone but stays on disk. Everything uses plain strings:
this runs inside the user's calls, and pathlib itself calls diverted functions.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MOST_KNOWN = 4096  # folders whose links were followed
MOST_NOTED = 10_000  # temporary files of one process
COMPILED = "torchinductor_"  # a cache among the temporary files


class Shadow:
    def __init__(self, scratch: Path, diverted: list[Path], left: list[Path]) -> None:
        """Divert writes below `diverted` but not below `left`; the innermost folder decides, `left` between equals."""
        self._tree = os.path.realpath(scratch)
        self._rules = {os.path.realpath(folder): True for folder in diverted}
        self._rules |= {os.path.realpath(folder): False for folder in left}
        self._rules[self._tree] = False
        self._gone: set[str] = set()
        self._known: dict[str, str] = {}
        self._written = False
        self._local = threading.local()
        self._places: set[str] = set()
        self.places: str | None = None  # a file that collects the folders the program reads from
        self._temporary: frozenset[str] = frozenset()
        self._notes: str | None = None
        self._noted: set[str] = set()

    def noted(self, path: Any) -> None:
        """Record the folder of a file that is about to be read; each folder once."""
        if self.places is None or isinstance(path, int):
            return
        text = os.fsdecode(path)
        folder = os.path.dirname(text)
        if folder in self._places:
            return
        self._places.add(folder)
        with self._ours():
            meant = os.path.dirname(self._meant(text))
            if not _append(self.places, meant):
                self.places = None

    def note_temporary(self, folders: Iterable[Path], file: Path) -> None:
        """From now on, collect in `file` the paths written directly to these folders, which are not diverted."""
        self._temporary = frozenset(os.path.realpath(folder) for folder in folders)
        self._notes = str(file)

    def written(self, path: Any) -> None:
        """Record a file that the program has put among the temporary ones; each path once."""
        if not isinstance(path, int):
            with self._ours():
                self._note(self._meant(path))

    def _note(self, meant: str) -> None:
        if self._notes is None or meant in self._noted or len(self._noted) >= MOST_NOTED:
            return
        folder = self._around(meant)
        if folder in self._temporary and not meant.startswith(f"{folder}/{COMPILED}"):
            self._noted.add(meant)
            if not _append(self._notes, meant):
                self._notes = None

    @property
    def inside(self) -> bool:
        """Whether this thread is in hotlap's own code, whose calls are not diverted."""
        return getattr(self._local, "inside", False)

    @contextmanager
    def _ours(self) -> Iterator[None]:
        before, self._local.inside = self.inside, True
        try:
            yield
        finally:
            self._local.inside = before

    # From a path to where it is

    def reading(self, path: Any) -> Any:
        """Return the path to read instead."""
        if isinstance(path, int) or not self._anything():
            return path
        with self._ours():
            meant = self._meant(path)
            if not self._diverts(meant):
                return path
            shadow = self._tree + meant
            if os.path.lexists(shadow) or self._is_gone(meant):
                return _like(path, shadow)
            return _like(path, meant) if self._in_tree(path) else path

    def writing(self, path: Any, fresh: bool) -> Any:
        """Return the path to write instead; unless `fresh`, it holds what the program would find there."""
        if isinstance(path, int):
            return path
        with self._ours():
            meant = self._meant(path)
            if not self._diverts(meant):
                self._note(meant)
                return path
            shadow = self._tree + meant
            folder = os.path.dirname(meant)
            if self._folder_exists(folder):
                os.makedirs(self._tree + folder, exist_ok=True)
            if not fresh and not os.path.lexists(shadow) and os.path.isfile(meant) and not self._is_gone(meant):
                shutil.copy2(meant, shadow)
            self._bring_back(meant)
            self._written = True
            return _like(path, shadow)

    def existing(self, path: Any) -> Any:
        """Return the path to give to a call that fails if it exists, or None if there is nothing."""
        seen = self.reading(path)
        with self._ours():
            return seen if os.path.lexists(seen) else None

    def diverts(self, path: Any) -> bool:
        if isinstance(path, int):
            return False
        with self._ours():
            return self._diverts(self._meant(path))

    def _bring_back(self, meant: str) -> None:
        """Forget that a path was removed, because it is created again; what a folder held before stays gone."""
        if meant in self._gone:
            self._gone.discard(meant)
            if os.path.isdir(meant):
                self._gone |= {f"{meant}/{name}" for name in os.listdir(meant)}

    # Removing, moving, listing

    def remove(self, path: Any, how: Any) -> None:
        """Remove a path; how(path) removes a file, an empty folder or a tree."""
        with self._ours():
            meant = self._meant(path)
            shadow = self._tree + meant
            own = os.path.lexists(meant) and not self._is_gone(meant)
            if not own and not os.path.lexists(shadow):
                how(path)  # raises the error that the program expects
            if os.path.lexists(shadow):
                how(shadow)
            if own:
                self._gone.add(meant)
                self._written = True

    def rename(self, source: Any, target: Any) -> None:
        seen = self.existing(source)
        if seen is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(source))
        place = self.writing(target, fresh=True)
        with self._ours():
            meant = self._meant(source)
            if os.fspath(seen) == self._tree + meant or not self._diverts(meant):
                if os.path.isdir(place) and not os.listdir(place):
                    os.rmdir(place)  # as rename does with an empty folder
                shutil.move(seen, place)
            elif os.path.isdir(seen):
                shutil.copytree(seen, place, dirs_exist_ok=True)
            else:
                shutil.copy2(seen, place)
            if self._diverts(meant) and os.path.lexists(meant):
                self._gone.add(meant)
                self._written = True

    def listed(self, path: Any) -> list[Any]:
        """Return the folders whose entries together are those of this one."""
        if isinstance(path, int) or not self._anything():
            return [path]
        with self._ours():
            meant = self._meant(path)
            shadow = self._tree + meant
            places = [] if self._is_gone(meant) else [_like(path, meant) if self._in_tree(path) else path]
            if not self._diverts(meant) or not os.path.isdir(shadow):
                return places or [_like(path, shadow)]
            return [_like(path, shadow), *(place for place in places if os.path.isdir(place))]

    def is_gone(self, folder: Any, name: Any) -> bool:
        with self._ours():
            return os.path.join(self._meant(folder), os.fsdecode(name)) in self._gone

    def unshadowed(self, path: str) -> str:
        """Return a path inside the scratch folder as the program knows it."""
        return path[len(self._tree) :] or "/" if path == self._tree or path.startswith(self._tree + "/") else path

    # How it is decided

    def _anything(self) -> bool:
        """Whether any process has written anything yet; costs one look at the disk per call until then."""
        if not self._written and not self.inside:
            with self._ours():
                self._written = os.path.isdir(self._tree)
        return self._written and not self.inside

    def _meant(self, path: Any) -> str:
        """Return the absolute path, with the links of its folder followed, as if nothing were diverted."""
        text = os.fsdecode(path)
        folder, name = os.path.split(text.rstrip("/") or "/")
        if name in ("", ".", ".."):
            return self.unshadowed(os.path.realpath(text))
        key = folder if folder.startswith("/") else f"{os.getcwd()}/{folder}"
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = self.unshadowed(os.path.realpath(key))
        return f"{self._known[key].rstrip('/')}/{name}"

    def _diverts(self, meant: str) -> bool:
        around = self._around(meant)
        return True if around is None else self._rules[around]

    def _around(self, meant: str) -> str | None:
        """Return the innermost folder that has a rule and holds the path."""
        around = [folder for folder in self._rules if meant == folder or meant.startswith(folder.rstrip("/") + "/")]
        return max(around, key=len, default=None)

    def _folder_exists(self, meant: str) -> bool:
        return os.path.isdir(self._tree + meant) or (os.path.isdir(meant) and not self._is_gone(meant))

    def _is_gone(self, meant: str) -> bool:
        return bool(self._gone) and any(meant == path or meant.startswith(path + "/") for path in self._gone)

    def _in_tree(self, path: Any) -> bool:
        """Whether the path as given leads into the scratch folder."""
        text = os.fsdecode(path)
        full = text if text.startswith("/") else f"{os.getcwd()}/{text}"
        return full.startswith(self._tree + "/")


def _append(file: str, line: str) -> bool:
    """Append a line, which other processes may do at the same time; False if the file cannot be opened."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError:
        return False
    os.write(descriptor, f"{line}\n".encode(errors="replace"))
    os.close(descriptor)
    return True


def _like(path: Any, text: str) -> Any:
    return os.fsencode(text) if isinstance(path, bytes) else text

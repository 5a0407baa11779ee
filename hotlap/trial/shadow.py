"""Where what a program writes goes instead, and what it then finds.

Below the scratch folder lies a copy of the paths that were written. A path is read there if it is there, else from
its own place. What the program removed of its own is remembered as gone and stays where it is. All in plain strings:
this runs inside the user's calls, and pathlib calls what is diverted.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MOST_KNOWN = 4096  # folders whose links were followed


class Shadow:
    def __init__(self, scratch: Path, diverted: list[Path], left: list[Path]) -> None:
        """`diverted` and `left` are folders; the innermost around a path decides, `left` between equals."""
        self._tree = os.path.realpath(scratch)
        self._rules = {os.path.realpath(one): True for one in diverted}
        self._rules |= {os.path.realpath(one): False for one in left}
        self._rules[self._tree] = False
        self._gone: set[str] = set()
        self._known: dict[str, str] = {}
        self._written = False
        self._local = threading.local()
        self._places: set[str] = set()
        self.places: str | None = None  # a file to note in where the program reads from

    def noted(self, path: Any) -> None:
        """A file of this folder is about to be read; a folder is told once."""
        if self.places is None or isinstance(path, int):
            return
        text = os.fsdecode(path)
        folder = os.path.dirname(text)
        if folder in self._places:
            return
        self._places.add(folder)
        with self._ours():
            meant = os.path.dirname(self._meant(text))
            try:
                descriptor = os.open(self.places, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            except OSError:
                self.places = None
                return
            os.write(descriptor, f"{meant}\n".encode(errors="replace"))
            os.close(descriptor)

    @property
    def inside(self) -> bool:
        """Whether this thread is in our own code, whose calls mean what they say."""
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
        """The path to read instead."""
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
        """The path to write instead; unless `fresh`, with what the program would find there."""
        if isinstance(path, int):
            return path
        with self._ours():
            meant = self._meant(path)
            if not self._diverts(meant):
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
        """What to hand to a call that fails on what exists: that path, or None when there is nothing."""
        seen = self.reading(path)
        with self._ours():
            return seen if os.path.lexists(seen) else None

    def diverts(self, path: Any) -> bool:
        if isinstance(path, int):
            return False
        with self._ours():
            return self._diverts(self._meant(path))

    def _bring_back(self, meant: str) -> None:
        """A path that was gone is made anew; what a folder held before stays gone."""
        if meant in self._gone:
            self._gone.discard(meant)
            if os.path.isdir(meant):
                self._gone |= {f"{meant}/{name}" for name in os.listdir(meant)}

    # Removing, moving, listing

    def remove(self, path: Any, how: Any) -> None:
        """how(path) removes a file, an empty folder or a tree."""
        with self._ours():
            meant = self._meant(path)
            shadow = self._tree + meant
            own = os.path.lexists(meant) and not self._is_gone(meant)
            if not own and not os.path.lexists(shadow):
                how(path)  # raises what there is to raise
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
        """The folders whose entries together are those of this one."""
        if isinstance(path, int) or not self._anything():
            return [path]
        with self._ours():
            meant = self._meant(path)
            shadow = self._tree + meant
            places = [] if self._is_gone(meant) else [_like(path, meant) if self._in_tree(path) else path]
            if not self._diverts(meant) or not os.path.isdir(shadow):
                return places or [_like(path, shadow)]
            return [_like(path, shadow), *(one for one in places if os.path.isdir(one))]

    def is_gone(self, folder: Any, name: Any) -> bool:
        with self._ours():
            return os.path.join(self._meant(folder), os.fsdecode(name)) in self._gone

    def unshadowed(self, path: str) -> str:
        """A path inside the scratch folder as the program knows it."""
        return path[len(self._tree) :] or "/" if path == self._tree or path.startswith(self._tree + "/") else path

    # How it is decided

    def _anything(self) -> bool:
        """Whether anything was written, by whichever process: one look at the disk until then."""
        if not self._written and not self.inside:
            with self._ours():
                self._written = os.path.isdir(self._tree)
        return self._written and not self.inside

    def _meant(self, path: Any) -> str:
        """Absolute, with the links of its folder followed, as if nothing were diverted."""
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
        around = [one for one in self._rules if meant == one or meant.startswith(one.rstrip("/") + "/")]
        return self._rules[max(around, key=len)] if around else True

    def _folder_exists(self, meant: str) -> bool:
        return os.path.isdir(self._tree + meant) or (os.path.isdir(meant) and not self._is_gone(meant))

    def _is_gone(self, meant: str) -> bool:
        return bool(self._gone) and any(meant == one or meant.startswith(one + "/") for one in self._gone)

    def _in_tree(self, path: Any) -> bool:
        """Whether the path as given leads into the scratch folder."""
        text = os.fsdecode(path)
        full = text if text.startswith("/") else f"{os.getcwd()}/{text}"
        return full.startswith(self._tree + "/")


def _like(path: Any, text: str) -> Any:
    return os.fsencode(text) if isinstance(path, bytes) else text

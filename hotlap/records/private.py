"""Files and folders that only their owner can use, whatever the umask, and reading what others may have put there.

Inside the program's process this stands for Path.write_text: the umask there is the program's own.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

FOLDER, FILE = 0o700, 0o600
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
MOST_LINKS = 40  # as many as Linux follows
ROOT = 0
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


class Unfit(Exception):
    """Why a file or folder is not used, beginning with its name."""


def current_folder() -> str:
    """Its real path; "/" where it was removed, which keeps no program from running in it."""
    try:
        return os.path.realpath(Path.cwd())
    except OSError:
        return "/"


def make_folder(path: Path) -> None:
    """With those above it that are missing. A folder that is there keeps its mode."""
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        path.mkdir(FOLDER)
    except FileExistsError:
        if not path.is_dir():  # else another process was faster
            raise
        return
    path.chmod(FOLDER)  # a umask can also take away what the owner needs


def write_text(path: Path, text: str) -> None:
    write(path, text.encode())


def write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, FILE)
    with os.fdopen(descriptor, "wb") as file:
        tighten(descriptor)
        file.write(data)


def tighten(descriptor: int) -> None:
    """Where the file system knows no modes, that of the folder must do."""
    with suppress(OSError):
        os.fchmod(descriptor, FILE)


def read(path: Path, most: int) -> bytes:
    """A regular file of at most so many bytes; never waits for a pipe, never follows a link."""
    try:
        _refuse_kind(path, path.lstat())  # before it is opened: opening a device may do something
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            _refuse_kind(path, os.fstat(descriptor))
            data = file.read(most + 1)
    except OSError as error:
        raise Unfit(f"{path} cannot be read ({error.strerror or error})") from error
    if len(data) > most:
        raise Unfit(f"{path} is larger than {most} bytes")
    return data


def _refuse_kind(path: Path, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise Unfit(f"{path} is a link to {path.readlink()}")
    if not stat.S_ISREG(status.st_mode):
        raise Unfit(f"{path} is {KINDS.get(stat.S_IFMT(status.st_mode), 'a device')}, not a file")


def refuse_what_others_can_change(path: Path) -> None:
    """Whoever can write the path, or a folder on the way to it, can put something else in its place."""
    at, links = Path("/"), 0
    waiting = list(path.absolute().parts[1:])
    while waiting:
        _refuse_others(at, at.stat())
        step = at / waiting.pop(0)
        status = step.lstat()
        if not stat.S_ISLNK(status.st_mode):
            at = step.parent.parent if step.name == ".." else step
            continue
        links += 1
        if links > MOST_LINKS:
            raise Unfit(f"{path} is behind links that lead in a circle")
        _refuse_owner(step, status)
        target = step.readlink()
        at = Path("/") if target.is_absolute() else at
        waiting = [*(target.parts[1:] if target.is_absolute() else target.parts), *waiting]
    _refuse_others(at, at.stat())


def _refuse_others(path: Path, status: os.stat_result) -> None:
    _refuse_owner(path, status)
    kept_apart = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX  # as /tmp: nobody moves another's
    if status.st_mode & OTHERS_WRITE and not kept_apart:
        raise Unfit(f"others can write {path}; type: chmod go-w {path}")


def _refuse_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (os.getuid(), ROOT):
        raise Unfit(f"{path} belongs to another user (number {status.st_uid})")


def refuse_foreign_folder(path: Path) -> None:
    """Of a folder that things are to be kept in, if it is there: a link, another's, or open to all."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise Unfit(f"{path} cannot be used ({error.strerror or error})") from error
    if stat.S_ISLNK(status.st_mode):
        raise Unfit(f"{path} is a link to {path.readlink()}, which hotlap does not follow")
    if not stat.S_ISDIR(status.st_mode):
        raise Unfit(f"{path} is not a folder")
    _refuse_owner(path, status)
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise Unfit(f"everybody can write {path}; type: chmod go-w {path}")

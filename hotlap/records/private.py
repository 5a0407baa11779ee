"""Writes files that only their owner can use, whatever the umask, and reads files that others may have written.

In the program's process this replaces Path.write_text, which would follow the program's umask.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER, FILE = 0o700, 0o600
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
MOST_LINKS = 40  # the limit of Linux
ROOT = 0
OF_WRITES = frozenset({signal.SIGPIPE, signal.SIGXFSZ})  # the second where a file would exceed the program's limit
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


class Unfit(Exception):
    """A file or folder is not used; the message says why and begins with its path."""


def current_folder() -> str:
    """Return the real path of the current folder; "/" if it was removed, where programs can still run."""
    try:
        return os.path.realpath(Path.cwd())
    except OSError:
        return "/"


def make_folder(path: Path) -> None:
    """Create a folder with its missing parents. An existing folder keeps its mode."""
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        path.mkdir(FOLDER)
    except FileExistsError:
        if not path.is_dir():  # otherwise another process was faster
            raise
        return
    path.chmod(FOLDER)  # a umask can even remove permissions of the owner


def write_text(path: Path, text: str) -> None:
    write(path, text.encode())


def write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, FILE)
    with unsignalled(), os.fdopen(descriptor, "wb") as file:
        tighten(descriptor)
        file.write(data)


@contextmanager
def unsignalled() -> Iterator[None]:
    """Take away the signal that a failed write in this thread causes, of which the program could die, or which it
    could handle. A signal that the program blocks itself is left.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, OF_WRITES)
        try:
            yield
        except OSError:
            caused = OF_WRITES & signal.sigpending() - before
            if caused:
                signal.sigwait(caused)
            raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def tighten(descriptor: int) -> None:
    """Make a file private; on a file system without modes, the mode of the folder has to suffice."""
    with suppress(OSError):
        os.fchmod(descriptor, FILE)


def read(path: Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes; never waits for a pipe and never follows a link."""
    try:
        _refuse_kind(path, path.lstat())  # before opening: opening a device can have side effects
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
    """Refuse a path if others can write it or a folder on the way to it, since they could replace it."""
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
            raise Unfit(f"{path} is behind a circle of links")
        _refuse_owner(step, status)
        target = step.readlink()
        at = Path("/") if target.is_absolute() else at
        waiting = [*(target.parts[1:] if target.is_absolute() else target.parts), *waiting]
    _refuse_others(at, at.stat())


def _refuse_others(path: Path, status: os.stat_result) -> None:
    _refuse_owner(path, status)
    is_sticky = (
        stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    )  # as /tmp: users cannot move others' files
    if status.st_mode & OTHERS_WRITE and not is_sticky:
        raise Unfit(f"others can write {path}; type: chmod go-w {path}")


def _refuse_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (os.getuid(), ROOT):
        raise Unfit(f"{path} belongs to another user (uid {status.st_uid})")


def refuse_foreign_folder(path: Path) -> None:
    """Refuse an existing folder for private files if it is a link, belongs to another user or is writable by all."""
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

"""A question answered in a copy of this process, so that finding out leaves nothing behind in the training."""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import signal
import stat
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, cast

from hotlap.catalog.silence import standard_before

PATIENCE = 30.0  # seconds; what takes longer may as well be a deadlock
BYTECODE = "__pycache__"
CHANGES = {f"os.{name}" for name in ("remove", "rename", "mkdir", "rmdir", "truncate", "link", "symlink", "system")}
CHANGES |= {"subprocess.Popen", "os.posix_spawn", "os.spawn", "os.exec", "os.fork", "os.forkpty"}
OWN_FILES = Path("/proc/self/fd")  # of a process, on Linux
TOKENIZERS = "TOKENIZERS_PARALLELISM"  # unset, the library writes a warning in every fork


class NoAnswer(Exception):
    """Why."""


class Writes(Exception):
    """A file would have been written, or a process started."""


def in_a_fork(torch: Any, work: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """What work() returns, which pickle can hold. Raises NoAnswer."""
    return in_forks(torch, [work], patience)[0]


def in_forks(torch: Any, works: Sequence[Callable[[], Any]], patience: float = PATIENCE) -> list[Any]:
    """What each of them returns, side by side. Raises NoAnswer when one has none."""
    children: dict[int, int] = {}  # where it answers → its process
    try:
        for work in works:
            read, child = _begun(torch, work)
            children[read] = child
        answers = _answers(list(children), time.monotonic() + patience)
    finally:
        for read, child in children.items():
            os.close(read)
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(child, 0)
    return [answer(one, patience) for one in answers]


def answer(found: bytes | None, patience: float) -> Any:
    if found is None:
        raise NoAnswer(f"a process of its own did not fetch a sample within {patience:.0f} s")
    if not found:
        raise NoAnswer("a process of its own died while fetching a sample")
    return pickle.loads(found)


def be_silent() -> None:
    """For the rest of this process: whatever is printed, or a crash."""
    faulthandler.disable()
    standard_before.extend((sys.stdout, sys.stderr))
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(os.memfd_create("heard") if hasattr(os, "memfd_create") else nowhere, 1)
    os.dup2(nowhere, 2)
    sys.stdout, sys.stderr = (open(one, "w", encoding="utf-8", closefd=False) for one in (1, 2))  # noqa: SIM115


def was_heard() -> bool:
    """Whether something was written to the standard output, in whatever way, since this process is silent."""
    with suppress(OSError, ValueError):
        for stream in (*standard_before, sys.stdout):
            stream.flush()
    return os.fstat(1).st_size > 0


def own_files(but: int) -> None:
    """A copy of a process shares where its parent is in each file, and talks on its lines: here files are opened anew,
    at the same place, and sockets and pipes lead nowhere.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in [int(one.name) for one in OWN_FILES.iterdir()] if OWN_FILES.is_dir() else []:
        if descriptor <= 2 or descriptor in (but, nowhere):
            continue
        with suppress(OSError):  # the one that listed them is closed by now
            kind = os.fstat(descriptor).st_mode
            if stat.S_ISREG(kind):
                _open_anew(descriptor)
            elif stat.S_ISSOCK(kind) or stat.S_ISFIFO(kind):
                os.dup2(nowhere, descriptor)


def _open_anew(descriptor: int) -> None:
    import fcntl  # not everywhere, and forks neither

    access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)
    fresh = os.open(OWN_FILES / str(descriptor), access)
    os.lseek(fresh, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
    os.dup2(fresh, descriptor)
    os.close(fresh)


def keep_from_writing() -> None:
    """For the rest of this process."""
    sys.addaudithook(refuse_to_write)


def has_written(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, Writes):
        error = error.__cause__ or error.__context__
    return error is not None


def refuse_to_write(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = args
        writing = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        if writing and os.devnull != path and BYTECODE not in str(path):
            raise Writes
    elif event in CHANGES:
        raise Writes


def _begun(torch: Any, work: Callable[[], Any]) -> tuple[int, int]:
    """Where it will answer, and its process."""
    read, write = os.pipe()
    try:
        child = _fork()
    except OSError as error:
        os.close(read)
        os.close(write)
        raise NoAnswer(f"no process could be started ({error.strerror})") from error
    if child == 0:
        _in_child(torch, work, write)
    os.close(write)
    return read, child


def _fork() -> int:
    configured = os.environ.get(TOKENIZERS)
    if configured is None:
        os.environ[TOKENIZERS] = "false"
    try:
        if not any(action == "error" for action, *_ in warnings.filters):
            return os.fork()
        with warnings.catch_warnings():  # which makes Python forget what it has warned of
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, as a loader does
            return os.fork()
    finally:
        if configured is None:
            del os.environ[TOKENIZERS]


def _in_child(torch: Any, work: Callable[[], Any], write: int) -> None:
    """Never returns: the way up is the training's."""
    try:
        be_silent()
        own_files(but=write)
        gc.disable()  # a tensor of the parent's device must not be freed here
        torch.set_num_threads(1)  # the threads of the parent were not forked with it
        with open(write, "wb") as pipe:
            pipe.write(pickle.dumps(work()))
    finally:
        os._exit(0)


def _answers(reads: Sequence[int], until: float) -> list[bytes | None]:
    """What each child says before it ends; None where the time is over."""
    parts: dict[int, list[bytes]] = {read: [] for read in reads}
    ended: set[int] = set()
    while len(ended) < len(parts):
        ready = wait(parts.keys() - ended, max(0.0, until - time.monotonic()))
        if not ready:
            break
        for read in cast("list[int]", ready):
            part = os.read(read, 1 << 16)
            if part:
                parts[read].append(part)
            else:
                ended.add(read)
    return [b"".join(said) if read in ended else None for read, said in parts.items()]

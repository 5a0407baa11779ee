"""Checkpoints: copied aside on the device, written by another thread, whole or not at all.

A file is written beside its place, flushed to the disk and renamed. It holds tensors and plain values only, so that
`torch.load(path, weights_only=True)` reads it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from hotlap.engine.errors import CheckpointDamaged, CheckpointNotWritten, CheckpointsInTheWay, NothingToResume
from hotlap.engine.recipe import Checkpoints
from hotlap.engine.sharding import is_sharded

FORMAT = 1
LAST, BEST = "last.pt", "best.pt"
State = dict[str, Any]
PARTS = ("place", "about", "model", "buffers", "optimizer", "scaler", "average", "losses", "train_metrics", "random")
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)  # what weights_only reads
HELD_SECONDS = 0.2  # at most


Order = tuple[State, Callable[[], None], Sequence[str], Sequence[str]]


class PlainList(list[Any]):
    """Plain values that no longer change, so that they need not be copied one by one."""


def every_name(epoch: int) -> str:
    return f"epoch-{epoch:04d}.pt"


def best_name(epoch: int) -> str:
    return f"best-{epoch:04d}.pt"


def require_free(folder: Path) -> None:
    """Raise if the folder holds the checkpoints of another run."""
    found = sorted(path.name for pattern in (LAST, BEST, "best-*.pt", "epoch-*.pt") for path in folder.glob(pattern))
    if found:
        raise CheckpointsInTheWay(
            f"{folder} holds the checkpoints of another run ({', '.join(found[:3])}{', …' if found[3:] else ''}); "
            'continue it with fit(…, resume="auto"), use another folder, or overwrite it with '
            "Checkpoints(folder, replace=True)"
        )


def to_resume(own: Checkpoints | None, resume: bool | Path | str) -> tuple[State | None, Path | None]:
    """Return the checkpoint that a run continues, and its path; None for a run that begins, in a folder of its own."""
    last = None if own is None else Path(own.folder) / LAST
    if last is None and (resume is True or resume == "auto"):
        raise NothingToResume(f"resume={resume!r} needs a recipe with checkpoints=Checkpoints(folder)")
    if resume == "auto":
        assert last is not None
        resume = last.exists()
    path = last if resume is True else None if resume is False else Path(resume)
    if own is not None and not own.replace and (path is None or path.parent != Path(own.folder)):
        require_free(Path(own.folder))
    return (None, None) if path is None else (load(path), path)


class Writer:
    """Writes one state at a time; the training waits only if the disk is slower than the checkpoints come.

    Writing takes the interpreter from the training thread, five milliseconds at a time, so it is held back a little,
    until that thread waits for the device anyway.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.waited = 0.0
        self.last_good: Path | None = None
        self.failed: dict[str, str] = {}  # names that should have been written since, and why they were not
        self._queue: queue.Queue[Order | None] = queue.Queue(maxsize=1)
        self._thread: threading.Thread | None = None
        self._free = threading.Event()

    def prepare(self) -> None:
        """Raise before the first step if nothing can be written, and remove what killed runs left half written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for leftover in self.folder.glob(".*.pt.*.tmp"):
                if not _is_alive(int(leftover.name.split(".")[-2])):
                    leftover.unlink(missing_ok=True)
        except (OSError, ValueError) as error:
            raise CheckpointNotWritten(f"no checkpoint can be written to {self.folder}: {error}") from error

    def put(self, state: State, names: Sequence[str], outdated: Sequence[str] = ()) -> None:
        """Hand over the state as it is now; what later steps change is not written. Outdated files are removed once it
        is written.
        """
        aside, ready = set_aside(state)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="hotlap-checkpoints", daemon=True)
            self._thread.start()
        started = time.perf_counter()
        if self._queue.full():
            self.go_on()
        else:
            self._free.clear()
        self._queue.put((aside, ready, names, outdated))
        self.waited += time.perf_counter() - started

    def go_on(self) -> None:
        """Let the writer work: the training thread has nothing to do for now."""
        self._free.set()

    def close(self) -> None:
        """Wait until everything handed over is on the disk, or raise the error that prevented it."""
        self.go_on()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        if self.failed:
            why, self.failed = "; ".join(self.failed.values()), {}
            raise CheckpointNotWritten(f"{why}; last good: {self.last_good}")

    def drain(self) -> None:
        """Wait until everything handed over is written; errors are raised by `close`."""
        self.go_on()
        self._queue.join()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            state, ready, names, outdated = item
            self._free.wait(HELD_SECONDS)
            try:
                self._write(state, ready, names)
                if not self.failed:
                    self._remove(outdated)
            except Exception as error:  # noqa: BLE001 - `close` waits for this thread
                self.failed |= {
                    name: f"no checkpoint could be written to {self.folder / name}: {error}" for name in names
                }
            finally:
                self._queue.task_done()
        self._queue.task_done()

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError):  # one file too many does no harm
                (self.folder / name).unlink(missing_ok=True)

    def _write(self, state: State, ready: Callable[[], None], names: Sequence[str]) -> None:
        """Write the first name last: a checkpoint to resume must not know of a best one that does not exist."""
        written: Path | None = None
        for name in (*names[1:], names[0]):
            try:
                ready()
                written = write(state, self.folder / name, written)
            except (OSError, RuntimeError) as error:  # torch's own writer raises the latter where the disk is full
                self.failed[name] = f"no checkpoint could be written to {self.folder / name}: {error}"
            else:
                self.failed.pop(name, None)
                self.last_good = written


def _on_host(value: Tensor, on_device: list[torch.device]) -> Tensor:
    if value.device.type != "cuda":
        return value.detach().clone()
    if is_sharded(value):
        return value.detach().cpu()  # host sync
    on_device.append(value.device)
    pinned = torch.empty_like(value, device="cpu", pin_memory=True)  # laid out alike: a resumed run goes on so
    return pinned.copy_(value.detach(), non_blocking=True)  # on the stream of the steps: before the next one


def set_aside(state: State) -> tuple[State, Callable[[], None]]:
    """Return a copy in host memory and a function that waits until it has arrived; training continues meanwhile."""
    on_device: list[torch.device] = []

    def copied(value: Any) -> Any:
        if isinstance(value, Tensor):
            return _on_host(value, on_device)
        if isinstance(value, PlainList):
            return list(value)
        if isinstance(value, dict):
            return {name: copied(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return (
                [copied(item) for item in value] if isinstance(value, list) else tuple(copied(item) for item in value)
            )
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, PLAIN):
            raise CheckpointNotWritten(
                f"the state holds {value!r} of type {type(value).__name__}, "
                "which a checkpoint that is safe to load cannot hold; keep only plain values in the optimizer's groups"
            )
        return value

    aside = copied(state)
    if not on_device:
        return aside, lambda: None
    arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(on_device[0]))
    return aside, arrived.synchronize


def write(state: State, path: Path, same: Path | None = None) -> Path:
    """Replace the file at once, or leave it unchanged. `same` is a file that already holds the state."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            if same is None:
                torch.save(state, file)
            else:
                _copy(same, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


def _copy(path: Path, into: BinaryIO) -> None:
    with path.open("rb") as file:
        shutil.copyfileobj(file, into, 1 << 20)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(path: Path) -> State:
    """Return the state after checking every byte of it; an error names the last good checkpoint in the folder."""
    if not path.exists():
        raise NothingToResume(f"nothing to resume: {path} does not exist; start once without resume")
    why = damage(path)
    if why is None:
        state: State = torch.load(path, map_location="cpu", weights_only=True)
        missing = [name for name in PARTS if name not in state]
        if state.get("format") == FORMAT and not missing:
            return state
        why = f"it has format {state.get('format')!r}, but this version reads {FORMAT}"
        if state.get("format") == FORMAT:
            why = f"it has no {missing[0]!r}"
    good = last_good(path)
    hint = f"the last good one is {good}" if good else "there is no good one in its folder"
    raise CheckpointDamaged(f"{path} cannot be read: {why}; {hint}")


def damage(path: Path) -> str | None:
    """Return why the file is not a good checkpoint, or None. Reads all of it: a flipped bit shows in a checksum."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
        if bad is not None:
            return f"{bad} in it has changed since it was written"
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        return f"cut short or damaged ({error})"
    except Exception as error:  # noqa: BLE001 - whatever unpickling makes of a damaged file
        return f"not a checkpoint ({type(error).__name__})"
    return None if isinstance(state, dict) and "format" in state else "not a checkpoint of the engine"


def last_good(path: Path) -> Path | None:
    """Return the newest undamaged checkpoint in the same folder."""
    candidates = [file for file in path.parent.glob("*.pt") if file != path]
    for file in sorted(candidates, key=lambda file: file.stat().st_mtime_ns, reverse=True):
        if damage(file) is None:
            return file
    return None

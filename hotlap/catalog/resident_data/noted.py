"""What a dataset does in a loader's workers besides giving its items, noted while their batches are kept."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any

from hotlap.catalog.forked import Writes, refuse_to_write
from hotlap.catalog.making import start_method
from hotlap.catalog.resident_data.streams import OWN, RANDOM, Streams

NOTHING, DRAWS, DRAWS_OWN, WRITES, PRINTS = range(5)
WHY = {
    DRAWS: f"{RANDOM}: fetching one draws random numbers",
    DRAWS_OWN: f"{RANDOM}: fetching one draws random numbers of {OWN}",
    WRITES: "fetching an item writes a file",
    PRINTS: "fetching an item prints something",
}


class Notes:
    """Shared with the workers: what was noted last."""

    def __init__(self, context: Any) -> None:
        self._noted = multiprocessing.get_context(start_method(context)).RawValue("b", NOTHING)

    @property
    def why(self) -> str | None:
        return WHY.get(self._noted.value)

    def note(self, what: int) -> None:
        self._noted.value = what


class Heeded:
    """What was noted in this process."""

    def __init__(self, forbids: bool) -> None:
        self._noted, self.forbids, self.thread = NOTHING, forbids, get_ident()

    @property
    def why(self) -> str | None:
        return WHY.get(self._noted)

    def note(self, what: int) -> None:
        self._noted = what


_listening: list[Heeded] = []
_hooked = False  # a hook stays as long as the process


@contextmanager
def hearing(forbids: bool = False) -> Iterator[Heeded]:
    """Whether a stretch of the program's own code prints or writes a file; it may be forbidden, by raising Writes."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_hear)
        _hooked = True
    heeded, before = Heeded(forbids), sys.stdout
    sys.stdout = ours = Heard(before, heeded)
    _listening.append(heeded)
    try:
        yield heeded
    finally:
        _listening.remove(heeded)
        if sys.stdout is ours:
            sys.stdout = before


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if _listening and _listening[-1].thread == get_ident():
        try:
            refuse_to_write(event, args)
        except Writes:
            _listening[-1].note(WRITES)
            if _listening[-1].forbids:
                raise


class Watched:
    """The dataset, in a worker: from the first item on it is watched what its code does."""

    def __init__(self, dataset: Any, notes: Notes) -> None:
        self._dataset, self._notes = dataset, notes
        self._streams: Streams | None = None
        self._inside: int | None = None  # the thread in the dataset's code: torch and its queues open files too

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._several(self._dataset.__getitem__, index)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name != "__getitems__":
            raise AttributeError(name)
        found = getattr(self._dataset, name)
        return partial(self._several, found) if name == "__getitems__" else found

    def _several(self, fetch: Any, indices: Any) -> Any:
        if self._streams is None:
            self._begin()
        self._inside = get_ident()
        try:
            return fetch(indices)
        finally:
            self._inside = None

    def _begin(self) -> None:
        """A worker's streams have just been seeded."""
        import torch  # the catalogue is read without it

        self._streams = Streams(torch, self._dataset)
        sys.addaudithook(self._hear)
        sys.stdout = Heard(sys.stdout, self._notes)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self._inside != get_ident():
            return
        try:
            refuse_to_write(event, args)
        except Writes:
            self._notes.note(WRITES)

    def look(self) -> None:
        """After each batch."""
        if self._streams is not None and (moved := self._streams.moved()) is not None:
            self._notes.note(DRAWS_OWN if moved.startswith(OWN) else DRAWS)


class Collating:
    """The collate_fn, in a worker."""

    def __init__(self, collate: Any, watched: Watched) -> None:
        self._collate, self._watched = collate, watched

    def __call__(self, samples: Any) -> Any:
        batch = self._collate(samples)
        self._watched.look()
        return batch


class Heard:
    """A stream that passes on what is written, and notes that something was."""

    def __init__(self, stream: Any, notes: Notes | Heeded) -> None:
        self._stream, self._notes = stream, notes

    def write(self, text: str) -> Any:
        self._notes.note(PRINTS)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            self._notes.note(PRINTS)
        return getattr(self._stream, name)

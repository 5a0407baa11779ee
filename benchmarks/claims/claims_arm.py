"""One run of one arm: naive.py in a copy of the workloads, as it is or with a change, in a fresh process."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import claims_book
from claims_book import Book
from claims_record import NAIVE, NAIVES, Claims

from hotlap.bench import process
from hotlap.bench.order import Key
from hotlap.bench.record import Run

Runner = Callable[[process.Arm, Key, Path, process.OnLine], Run]


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed(process.Arm):
    """naive.py in a copy of the workloads, with the change applied."""

    more: tuple[str, ...]  # arguments

    def arguments(self, seed: int, data: str, out: str) -> list[str]:
        return [*process.Arm.arguments(self, seed, data, out), *self.more]


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    book: Book
    place: Path  # of the workloads
    out: Path
    minutes: float | None  # no run or block of rounds starts later
    max_seconds: float | None  # of one run; in rounds of its start with the first epoch, of each later one, of its end


def trained(session: Session, record: Claims, key: Key, folder: Path, run: Runner, on_line: process.OnLine) -> Run:
    workload, name, seed = key
    book = session.book
    change = None if name in NAIVES else book.changes[name]
    with tempfile.TemporaryDirectory(prefix="hotlap-claims-") as temporary:
        edits = book.edits(change, workload, record.device)
        place = claims_book.make(session.place, workload, edits, Path(temporary).resolve() / "workloads")
        arm = Changed(
            place=place,
            size=record.size,
            device=record.device,
            epochs=record.epochs[workload],
            max_seconds=session.max_seconds,
            more=tuple(book.arguments(change, record.device, record.size)) if change else (),
        )
        ended = run(arm, (workload, NAIVE, seed), folder, on_line)
    return _published(replace(ended, arm=name))


def _published(run: Run) -> Run:
    """Remove the folders of this machine from error texts, since results are committed."""

    def plain(text: str) -> str:
        return text.replace(sys.prefix, "PYTHON").replace(tempfile.gettempdir(), "TMP")

    return replace(run, errors=tuple(map(plain, run.errors)), why=None if run.why is None else plain(run.why))


def late(began: float, minutes: float | None) -> bool:
    return minutes is not None and time.monotonic() - began > 60 * minutes

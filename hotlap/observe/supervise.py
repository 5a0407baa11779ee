"""Runs the command to its end, or until hotlap ends it: reads its progress and enforces the time limits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotlap.observe.watch import Watch
from hotlap.patch.entry import HELLO, PROBLEM
from hotlap.process.in_front import InFront, signals_held
from hotlap.process.launch import start
from hotlap.records.progress import DONE, TIMING, Progress, read_progress
from hotlap.records.session import Session

GRACE = float(os.environ.get("HOTLAP_GRACE", "30"))  # seconds for the program to clean up once it was asked to stop
OVERTIME = 10.0  # seconds beyond --max-seconds for a step that is still running

OnProgress = Callable[[Progress | None, float], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandExit:
    exit_code: int
    died_by: int | None  # the signal that ended it, unless hotlap sent it
    interrupted: bool  # Ctrl-C, or a signal to hotlap that ends programs
    timed_out: bool  # ended by hotlap at --max-seconds
    stop_ignored: bool  # ended by hotlap because it caught the request to stop
    progress: Progress | None  # of the process that got furthest
    hellos: tuple[str, ...]  # one line per Python process entered
    problem: str | None


def supervise(
    command: Sequence[str], session_file: Path, session: Session, on_progress: OnProgress, quiet: bool = False
) -> tuple[CommandExit, Watch]:
    with signals_held() as before:
        front = InFront(start(command, session_file, quiet, before))
        watch = Watch(front.child.pid)
        watch.start()
        observed = _ObservedProcess(session, watch, on_progress)
        try:
            front.wait(observed.is_enough)
        finally:
            watch.stop()
    return observed.ending(front), watch


class _ObservedProcess:
    def __init__(self, session: Session, watch: Watch, on_progress: OnProgress) -> None:
        self._session, self._watch, self._on_progress = session, watch, on_progress
        self._folder = Path(session.folder)
        self._timed_out = self._stop_ignored = False
        self._done_at: float | None = None
        self._progress: Progress | None = None
        self._problem: str | None = None

    def is_enough(self) -> bool:
        self._look()
        elapsed = time.time() - self._session.started
        self._on_progress(self._progress, elapsed)
        return self._problem is not None or (not self._session.full and self._is_over_time(elapsed))

    def _look(self) -> None:
        found = [read_progress(path) for path in self._folder.glob("progress-*.bin")]
        known = [progress for progress in found if progress is not None]
        self._progress = max(
            known, key=lambda progress: (progress.state, progress.steps, progress.batches), default=None
        )
        self._watch.measuring = self._progress is not None and self._progress.state >= TIMING
        for path in self._folder.glob(f"{PROBLEM}-*.txt"):
            self._problem = path.read_text(encoding="utf-8").strip()

    def _is_over_time(self, elapsed: float) -> bool:
        if self._progress is not None and self._progress.state >= DONE:
            self._done_at = self._done_at or time.monotonic()
            self._stop_ignored = time.monotonic() - self._done_at > GRACE
            return self._stop_ignored
        stepped = self._progress is not None and self._progress.steps > 0
        self._timed_out = elapsed > self._session.max_seconds + (OVERTIME if stepped else 0.0)
        return self._timed_out

    def ending(self, command: InFront) -> CommandExit:
        self._look()
        code = command.child.returncode
        assert code is not None
        hellos = [path.read_text(encoding="utf-8").strip() for path in self._folder.glob(f"{HELLO}-*.txt")]
        return CommandExit(
            exit_code=code if code >= 0 else 128 - code,
            died_by=-code if code < 0 and not command.was_ended else None,
            interrupted=command.was_interrupted,
            timed_out=self._timed_out,
            stop_ignored=self._stop_ignored,
            progress=self._progress,
            hellos=tuple(hellos),
            problem=self._problem,
        )

"""Running the command to its end, or to ours: signals, time limits, and what it says of itself meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil

from hotlap.model.progress import DONE, TIMING, Progress, read_progress
from hotlap.model.session import Session
from hotlap.observe.watch import Watch
from hotlap.patch.entry import HELLO, PROBLEM
from hotlap.patch.launch import start

POLL = 0.1
GRACE = float(os.environ.get("HOTLAP_GRACE", "30"))  # for the program to clean up once it was asked to stop
OVERTIME = 10.0  # beyond --max-seconds for a step that is still under way
PATIENCE = 5.0  # between SIGTERM and SIGKILL
INSIST = 3  # times Ctrl-C is passed on as it is to a command that may ignore it

OnProgress = Callable[[Progress | None, float], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    exit_code: int
    interrupted: bool  # Ctrl-C, or a signal sent to us
    timed_out: bool  # ended by us at --max-seconds
    stop_ignored: bool  # ended by us because it caught our request to stop
    progress: Progress | None  # of the process that got furthest
    hellos: tuple[str, ...]  # one line per Python process entered
    problem: str | None


def supervise(
    command: Sequence[str], session_file: Path, session: Session, on_progress: OnProgress, quiet: bool = False
) -> tuple[Ending, Watch]:
    child = start(command, session_file, quiet)
    watch = Watch(child.pid)
    watch.start()
    attendant = _Attendant(child, session, watch, on_progress)
    try:
        with attendant.forwarding_signals():
            attendant.wait()
    finally:
        watch.stop()
    return attendant.ending(), watch


def accompany(command: Sequence[str], session_file: Path, session: Session, extra: Mapping[str, str]) -> Ending:
    """Run the command to its own end, whatever we find in it."""
    child = start(command, session_file, extra=extra)
    attendant = _Attendant(child, session, Watch(child.pid), lambda progress, elapsed: None)
    attendant.only_watching = True
    with attendant.forwarding_signals():
        attendant.wait()
    return attendant.ending()


class _Attendant:
    only_watching = False  # never end the command

    def __init__(self, child: subprocess.Popen[bytes], session: Session, watch: Watch, on_progress: OnProgress) -> None:
        self._child, self._session, self._watch, self._on_progress = child, session, watch, on_progress
        self._folder = Path(session.folder)
        self._signals = 0
        self._signalled = self._timed_out = self._stop_ignored = False
        self._done_at: float | None = None
        self._progress: Progress | None = None
        self._problem: str | None = None

    def wait(self) -> None:
        while self._child.poll() is None:
            self._look()
            elapsed = time.time() - self._session.started
            self._on_progress(self._progress, elapsed)
            self._enforce_limits(elapsed)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(POLL)
        self._look()

    def _look(self) -> None:
        found = [read_progress(path) for path in self._folder.glob("progress-*.bin")]
        known = [one for one in found if one is not None]
        self._progress = max(known, key=lambda one: (one.state, one.steps, one.batches), default=None)
        self._watch.measuring = self._progress is not None and self._progress.state >= TIMING
        for path in self._folder.glob(f"{PROBLEM}-*.txt"):
            self._problem = path.read_text(encoding="utf-8").strip()

    def _enforce_limits(self, elapsed: float) -> None:
        if self.only_watching:
            return
        if self._problem is not None:
            self._end()
        if self._session.full:
            return
        stepped = self._progress is not None and self._progress.steps > 0
        if elapsed > self._session.max_seconds + (OVERTIME if stepped else 0.0):
            done = self._progress is not None and self._progress.state >= DONE
            self._timed_out = not done
            if not done:
                self._end()
        if self._progress is not None and self._progress.state >= DONE:
            self._done_at = self._done_at or time.monotonic()
            if time.monotonic() - self._done_at > GRACE:
                self._stop_ignored = True
                self._end()

    def _end(self) -> None:
        """SIGTERM to the command, then SIGKILL to whatever is left of it."""
        family = _family(self._child.pid)
        self._child.terminate()
        try:
            self._child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        _, alive = psutil.wait_procs(family, timeout=1.0)
        for process in alive:
            with suppress(psutil.Error):
                process.kill()

    @contextmanager
    def forwarding_signals(self) -> Iterator[None]:
        """The terminal sends Ctrl-C to the command as well as to us; what is sent to us alone is passed on."""
        names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {name: signal.signal(name, self._forward) for name in names}
        try:
            yield
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True
        self._signals += 1
        if number == signal.SIGINT and self._signals == 1 and _in_terminal_foreground():
            return
        with suppress(ProcessLookupError):
            self._child.send_signal(number if self._signals < INSIST else signal.SIGTERM)

    def ending(self) -> Ending:
        code = self._child.returncode
        hellos = [path.read_text(encoding="utf-8").strip() for path in self._folder.glob(f"{HELLO}-*.txt")]
        return Ending(
            exit_code=code if code >= 0 else 128 - code,
            interrupted=self._signalled,
            timed_out=self._timed_out,
            stop_ignored=self._stop_ignored,
            progress=self._progress,
            hellos=tuple(hellos),
            problem=self._problem,
        )


def _family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _in_terminal_foreground() -> bool:
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            return os.tcgetpgrp(descriptor) == os.getpgrp()
    return False

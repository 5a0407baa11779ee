"""Running the command to its end, or to ours: time limits, what it says of itself meanwhile, and its signals.

We stand between the shell and the command, and it must not show. Every signal that is sent to us alone is passed on;
what the terminal sends went to the whole group of processes already. When the command stops we stop, when we are
continued it is, and the caller dies by the signal that it died by.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from hotlap.observe.watch import Watch
from hotlap.patch.entry import HELLO, PROBLEM
from hotlap.patch.launch import start
from hotlap.records.progress import DONE, TIMING, Progress, read_progress
from hotlap.records.session import Session

POLL = 0.1
GRACE = float(os.environ.get("HOTLAP_GRACE", "30"))  # for the program to clean up once it was asked to stop
OVERTIME = 10.0  # beyond --max-seconds for a step that is still under way
PATIENCE = 5.0  # between SIGTERM and SIGKILL

# The first two cannot be caught; the others are about what this process itself did, unless they stop or continue it.
OUR_OWN = {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGPIPE}
TYPED = {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH}
DUMPING = {signal.SIGQUIT, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}

OnProgress = Callable[[Progress | None, float], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    exit_code: int
    died_by: int | None  # the signal that ended it, unless it was one of ours
    interrupted: bool  # Ctrl-C, or a signal sent to us that ends programs
    timed_out: bool  # ended by us at --max-seconds
    stop_ignored: bool  # ended by us because it caught our request to stop
    progress: Progress | None  # of the process that got furthest
    hellos: tuple[str, ...]  # one line per Python process entered
    problem: str | None


def supervise(
    command: Sequence[str], session_file: Path, session: Session, on_progress: OnProgress, quiet: bool = False
) -> tuple[Ending, Watch]:
    with _signals_held() as before:
        child = start(command, session_file, quiet, before)
        watch = Watch(child.pid)
        watch.start()
        attendant = _Attendant(child, session, watch, on_progress)
        try:
            attendant.wait()
        finally:
            watch.stop()
    return attendant.ending(), watch


def die_by(number: int) -> None:
    """As the command died, for the shell to see; without a core file of ours."""
    import resource

    if number in DUMPING:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


@contextmanager
def _signals_held() -> Iterator[set[int | signal.Signals]]:
    """None is handled: they wait until they are asked for, and then tell who sent them. Gives the mask before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - OUR_OWN)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Attendant:
    def __init__(self, child: subprocess.Popen[bytes], session: Session, watch: Watch, on_progress: OnProgress) -> None:
        self._child, self._session, self._watch, self._on_progress = child, session, watch, on_progress
        self._folder = Path(session.folder)
        self._is_stopped = self._were_stopped = False  # the command now, and we since the last SIGCONT
        self._ended_by_us = self._signalled = self._timed_out = self._stop_ignored = False
        self._done_at: float | None = None
        self._progress: Progress | None = None
        self._problem: str | None = None

    def wait(self) -> None:
        while not self._has_ended():
            self._look()
            elapsed = time.time() - self._session.started
            self._on_progress(self._progress, elapsed)
            self._enforce_limits(elapsed)
            self._pass_on_signals(POLL)
        self._look()

    def _has_ended(self) -> bool:
        if self._child.returncode is None:
            pid, status = os.waitpid(self._child.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid and os.WIFSTOPPED(status):
                self._stop_too(os.WSTOPSIG(status))
            elif pid and os.WIFCONTINUED(status):
                self._is_stopped = False
            elif pid:
                self._child.returncode = os.waitstatus_to_exitcode(status)
        return self._child.returncode is not None

    def _stop_too(self, number: int) -> None:
        """By the same signal, so that the shell says the same. Returns when we are continued."""
        self._is_stopped = self._were_stopped = True
        if number == signal.SIGSTOP:
            os.kill(os.getpid(), number)
            return
        before = signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})  # here we stop
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})
        signal.signal(number, before)

    def _pass_on_signals(self, seconds: float) -> None:
        sent = _next_signal(seconds)
        while sent is not None:
            self._pass_on(*sent)
            sent = _next_signal(0)

    def _pass_on(self, number: int, by_terminal: bool) -> None:
        if number == signal.SIGCHLD:
            return  # it only wakes us
        self._signalled |= number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if number == signal.SIGCONT and self._were_stopped:
            # Who continued us may have continued the whole group already.
            self._were_stopped = False
            if self._has_ended() or not self._is_stopped:
                return
        if not by_terminal:
            with suppress(ProcessLookupError):
                os.kill(self._child.pid, number)

    def _look(self) -> None:
        found = [read_progress(path) for path in self._folder.glob("progress-*.bin")]
        known = [one for one in found if one is not None]
        self._progress = max(known, key=lambda one: (one.state, one.steps, one.batches), default=None)
        self._watch.measuring = self._progress is not None and self._progress.state >= TIMING
        for path in self._folder.glob(f"{PROBLEM}-*.txt"):
            self._problem = path.read_text(encoding="utf-8").strip()

    def _enforce_limits(self, elapsed: float) -> None:
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
        if self._child.returncode is not None:
            return
        self._ended_by_us = True
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

    def ending(self) -> Ending:
        code = self._child.returncode
        assert code is not None
        hellos = [path.read_text(encoding="utf-8").strip() for path in self._folder.glob(f"{HELLO}-*.txt")]
        return Ending(
            exit_code=code if code >= 0 else 128 - code,
            died_by=-code if code < 0 and not self._ended_by_us else None,
            interrupted=self._signalled,
            timed_out=self._timed_out,
            stop_ignored=self._stop_ignored,
            progress=self._progress,
            hellos=tuple(hellos),
            problem=self._problem,
        )


def _next_signal(seconds: float) -> tuple[int, bool] | None:
    """The signal that waits or comes, and whether the terminal sent it, to our whole group of processes."""
    awaited = signal.valid_signals() - OUR_OWN
    if hasattr(signal, "sigtimedwait"):
        sent = signal.sigtimedwait(awaited, seconds)
        return None if sent is None else (sent.si_signo, sent.si_code > 0)  # a process sends with 0 or less
    waiting = signal.sigpending() & awaited  # macOS does not tell who sent it
    if not waiting:
        time.sleep(seconds)
        return None
    number = signal.sigwait(waiting)
    return number, number in TYPED and _in_terminal_foreground()


def _in_terminal_foreground() -> bool:
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            return os.tcgetpgrp(descriptor) == os.getpgrp()
    return False


def _family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []

"""Stands between the shell and a command without being noticed.

Every signal sent to us alone is passed on; what the terminal or a program sends to the whole process group reaches the
command anyway. When the command stops, we stop; when we are continued, so is the command; and the caller dies by the
same signal as the command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from hotlap.process import tree
from hotlap.process.attendant import POLL, Attendant
from hotlap.process.witness import Witness

PATIENCE = 5.0  # seconds between SIGTERM and SIGKILL

# The first two cannot be caught; the others report what this process itself did.
OUR_OWN = {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGPIPE}
TYPED = {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH}
DUMPING = {signal.SIGQUIT, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}


@contextmanager
def signals_held() -> Iterator[set[int | signal.Signals]]:
    """Block all signals until they are fetched, with their sender; yields the previous mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - OUR_OWN)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_by(number: int) -> None:
    """Die by the same signal as the command, for the shell to see, without a core file of our own."""
    import resource

    if number in DUMPING:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


class InFront(Attendant):
    """An Attendant that passes on signals; for use within `signals_held`."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        super().__init__(child)
        self._is_stopped = self._were_stopped = False  # the command now; we ourselves since the last SIGCONT
        self.was_ended = False  # by us
        self.was_interrupted = False  # by Ctrl-C, or a signal sent to us that ends programs
        self._witness: Witness | None = None

    def wait(self, is_enough: Callable[[], bool]) -> bool:
        if not hasattr(signal, "sigtimedwait"):
            return super().wait(is_enough)
        with Witness() as self._witness:
            return super().wait(is_enough)

    def has_ended(self) -> bool:
        if self.child.returncode is None:
            pid, status = os.waitpid(self.child.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid and os.WIFSTOPPED(status):
                self._stop_too(os.WSTOPSIG(status))
            elif pid and os.WIFCONTINUED(status):
                self._is_stopped = False
            elif pid:
                self.child.returncode = os.waitstatus_to_exitcode(status)
        return self.child.returncode is not None

    def pause(self) -> None:
        sent = _next_signal(POLL)
        while sent is not None:
            self._pass_on(*sent)
            sent = _next_signal(0)

    def end(self) -> None:
        """Send SIGTERM to the command, then SIGKILL to whatever is left of its process tree."""
        if self.child.returncode is not None:
            return
        self.was_ended = True
        descendants = [process for process in tree.family(self.child.pid) if process.pid != self.child.pid]
        self.child.terminate()
        try:
            self.child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        _, alive = psutil.wait_procs(descendants, timeout=1.0)
        for process in alive:
            with suppress(psutil.Error):
                process.kill()

    def _stop_too(self, number: int) -> None:
        """Stop by the same signal, so that the shell reports the same; returns when we are continued."""
        self._is_stopped = self._were_stopped = True
        if number == signal.SIGSTOP:
            os.kill(os.getpid(), number)
            return
        before = signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})  # here we stop
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})
        signal.signal(number, before)

    def _pass_on(self, number: int, sender: int | None) -> None:
        if number == signal.SIGCHLD:
            return  # it only wakes us
        self.was_interrupted |= number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if number == signal.SIGCONT and self._were_stopped:
            # The sender may already have continued the whole group.
            self._were_stopped = False
            if self.has_ended() or not self._is_stopped:
                return
        if sender is not None and not (self._witness is not None and self._witness.has_noted(number, sender)):
            with suppress(ProcessLookupError):
                os.kill(self.child.pid, number)


def _next_signal(seconds: float) -> tuple[int, int | None] | None:
    """Return the next signal within the time, and its sender, or None if that is the terminal."""
    awaited = signal.valid_signals() - OUR_OWN
    if hasattr(signal, "sigtimedwait"):
        sent = signal.sigtimedwait(awaited, seconds)
        return None if sent is None else (sent.si_signo, None if sent.si_code > 0 else sent.si_pid)
    waiting = signal.sigpending() & awaited  # macOS does not reveal the sender
    if not waiting:
        time.sleep(seconds)
        return None
    number = signal.sigwait(waiting)
    return number, None if number in TYPED and _in_terminal_foreground() else 0


def _in_terminal_foreground() -> bool:
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            return os.tcgetpgrp(descriptor) == os.getpgrp()
    return False

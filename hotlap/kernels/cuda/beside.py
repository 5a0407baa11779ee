"""Compiles kernels beside a training, before they are needed, at the lowest priority."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from hotlap.machine import usable_cores

Job = Callable[[], object]
LOWEST = 19


class Beside:
    """Runs jobs on threads of its own. The process waits at its end for those under way: a compiler that is torn down
    while it works may crash.
    """

    def __init__(self, jobs: Iterable[Job], then: Callable[[], None]) -> None:
        """`then()` is called once, by the last thread, whether or not every job succeeded."""
        self._jobs, self._then, self._lock = deque(jobs), then, threading.Lock()
        self._at_work = threads = min(len(self._jobs), usable_cores())
        if not threads:
            then()
        for number in range(threads):
            threading.Thread(target=self._work, name=f"hotlap-compile-{number}").start()

    def _work(self) -> None:
        _step_back()
        while threading.main_thread().is_alive() and (job := self._next()) is not None:
            with suppress(Exception):  # whoever needs the kernel meets the error, and reports it
                job()
        with self._lock:
            self._at_work -= 1
            is_last = not self._at_work
        if is_last:
            self._then()

    def _next(self) -> Job | None:
        with self._lock:
            return self._jobs.popleft() if self._jobs else None


def _step_back() -> None:
    """Give this thread the lowest priority, where a thread can have its own."""
    if sys.platform.startswith("linux"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST)

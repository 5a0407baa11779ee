"""Waits for a command, looks at it now and then, and ends it with all that it started."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

from hotlap.process import tree

POLL = 0.1  # seconds between looks


class Attendant:
    def __init__(self, child: subprocess.Popen[Any], poll: float = POLL) -> None:
        self.child, self._poll = child, poll
        self.family: list[psutil.Process] = []  # as seen last: who left the group meanwhile is ended too

    def wait(self, is_enough: Callable[[], bool]) -> bool:
        """Whether it had to be ended; else it has ended by itself."""
        while not self.has_ended():
            if is_enough():
                self.end()
                return True
            self.pause()
        return False

    def has_ended(self) -> bool:
        return self.child.poll() is not None

    def pause(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.child.wait(self._poll)

    def end(self) -> None:
        """At once, with its whole group. Harmless where it has ended already."""
        tree.end(self.child.pid, self.family)
        self.child.wait()

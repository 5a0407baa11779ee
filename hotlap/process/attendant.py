"""Waits for a command, polls it, and ends it with its whole process tree."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

from hotlap.process import tree

POLL = 0.1  # seconds between polls


class Attendant:
    def __init__(self, child: subprocess.Popen[Any], poll: float = POLL) -> None:
        self.child, self._poll = child, poll
        self.family: list[psutil.Process] = []  # as last seen, so that processes that left the group are ended too

    def wait(self, is_enough: Callable[[], bool]) -> bool:
        """Wait for the command; return whether it had to be ended, rather than ending by itself."""
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
        """Kill the command and its whole group; harmless if it has already ended."""
        tree.end(self.child.pid, self.family)
        self.child.wait()

"""Tells whether a signal that reached us was sent to us alone, or to others of our process group as well.

A signal does not say to whom it was sent. So a second process of the group, which nobody else knows, notes the signals
that it gets: what reached both was sent to the group, or to every process there is. Linux only.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

PATIENCE = 0.5  # seconds for it to answer, unless it was stopped or killed
MARK = 64  # the last real-time signal, which is delivered after all others
NOTING = """
import os, signal, sys
while os.getppid() == int(sys.argv[1]):
    sent = signal.sigtimedwait(signal.valid_signals(), 1.0)
    if sent is not None:
        os.write(1, b"%d %d\\n" % (sent.si_signo, sent.si_pid))
"""


class Witness:
    """For use while all signals are blocked, which the process inherits."""

    def __init__(self) -> None:
        self._noted: list[tuple[int, int]] = []  # signals and their senders
        self._process = subprocess.Popen(
            [sys.executable, "-IS", "-c", NOTING, str(os.getpid())],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Witness:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def has_noted(self, number: int, sender: int) -> bool:
        """Return whether this signal, which has just reached us, was sent to the witness too."""
        with suppress(OSError):
            os.setpgid(0, os.getpgrp())  # changes nothing, but waits until the kernel has sent it to the whole group
        self._process.send_signal(MARK)
        self._noted += self._up_to((MARK, os.getpid()))
        if (number, sender) not in self._noted:
            return False
        self._noted.remove((number, sender))
        return True

    def _up_to(self, mark: tuple[int, int]) -> Iterator[tuple[int, int]]:
        answers = self._process.stdout
        assert answers is not None
        while select.select([answers], [], [], PATIENCE)[0] and (line := _line(answers.fileno())):
            number, sender = map(int, line.split())
            if (number, sender) == mark:
                return
            yield number, sender


def _line(descriptor: int) -> bytes:
    """Read a line without reading ahead; empty if the process has ended."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(descriptor, 1)):
        line += byte
    return line

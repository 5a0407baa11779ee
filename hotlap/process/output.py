"""What a command prints: its last lines, and the user's metric in them."""

from __future__ import annotations

import re
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from hotlap.records.trial import MetricValue

LINES = 60
LONGEST = 100_000  # characters of an unfinished line
MOST_KEPT = 100_000  # characters of all lines kept for comparison


class Listener:
    """Reads a stream to its end on a thread of its own, so that the command never waits for us."""

    def __init__(self, stream: IO[bytes], on_line: Callable[[str], None]) -> None:
        self._stream, self._on_line = stream, on_line
        self.last: deque[str] = deque(maxlen=LINES)
        self.lines: list[str] = []  # the lines that remain on a terminal, without those that were redrawn
        self.cut = 0  # number of lines that were not kept
        self._room = MOST_KEPT
        self._thread = threading.Thread(target=self._listen, name="hotlap-listen", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        rest = ""
        while chunk := self._chunk():
            *lines, rest = re.split(r"\n", rest + chunk.decode(errors="replace"))
            for line in lines:
                self._hear(line)
            *drawn, last = rest.rstrip("\r").split("\r")  # a progress bar that is redrawn
            if any(drawn):
                self._report(drawn)
                rest = "\r" + last + ("\r" if rest.endswith("\r") else "")
            rest = rest[-LONGEST:]
        self._hear(rest)

    def _chunk(self) -> bytes:
        with suppress(OSError, ValueError):
            return self._stream.read1(65536)  # type: ignore[attr-defined, no-any-return]
        return b""

    def _hear(self, line: str) -> None:
        drawn = line.rstrip("\r").split("\r")
        self._report(drawn)
        if len(drawn) == 1 and drawn[0]:
            self._keep(drawn[0])

    def _report(self, lines: list[str]) -> None:
        for line in filter(None, lines):
            self.last.append(line)
            self._on_line(line)

    def _keep(self, line: str) -> None:
        if self._room < len(line):
            self.cut += 1
            return
        self._room -= len(line) + 1
        self.lines.append(line)

    def wait(self, seconds: float) -> None:
        """Wait at most this long for the end of the stream, which a grandchild may hold open after the command ends."""
        self._thread.join(seconds)


def outputs(
    child: subprocess.Popen[bytes], on_line: Callable[[str], None] = lambda line: None
) -> tuple[Listener, Listener]:
    """Listen to the stdout and the stderr of a command."""
    assert child.stdout is not None
    assert child.stderr is not None
    return Listener(child.stdout, on_line), Listener(child.stderr, on_line)


class Pattern:
    """Reads the metric from printed lines, with the step at which each was printed."""

    def __init__(self, name: str, pattern: str, steps: Callable[[], int]) -> None:
        self._name, self._pattern, self._steps = name, re.compile(pattern), steps
        self.readings: list[MetricValue] = []

    def read(self, line: str) -> None:
        for found in self._pattern.finditer(line):
            with suppress(ValueError, TypeError):
                value = float(found[1])
                self.readings.append(MetricValue(name=self._name, step=self._steps(), value=value))

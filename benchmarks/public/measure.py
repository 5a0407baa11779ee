"""One arm of one program: started, timed from outside by its own output, ended."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ENDING = 10.0  # seconds for a program to end after SIGINT
BAR = re.compile(r"it/s|s/it|\?it|\d+%\|")  # a line that a progress bar drew
OURS = re.compile(r"^hotlap: ")


@dataclass(frozen=True)
class Enough:
    """So many lines of progress, where only what a program writes counts, not how fast."""

    progress: str
    lines: int

    def came(self, lines: Sequence[tuple[float, str, str]]) -> bool:
        return sum(re.search(self.progress, text) is not None for _, _, text in lines) >= self.lines


@dataclass
class Ran:
    seconds: float
    code: int | None  # None where it was still running and was ended
    lines: list[tuple[float, str, str]] = field(default_factory=list)  # when, which stream, text

    def progress(self, pattern: str) -> list[float]:
        """Return when each progress line came."""
        wanted = re.compile(pattern)
        return [at for at, _, text in self.lines if wanted.search(text)]

    def output(self, varies: Sequence[str]) -> dict[str, list[str]]:
        """What it wrote to each stream, without bars, our own lines and what differs from run to run."""
        patterns = [re.compile(pattern) for pattern in varies]
        found: dict[str, list[str]] = {"stdout": [], "stderr": []}
        for _, stream, text in self.lines:
            if BAR.search(text) or OURS.search(text) or not text.strip():
                continue
            for pattern in patterns:
                text = pattern.sub("…", text)
            found[stream].append(text)
        return found

    def ours(self) -> list[str]:
        return [text for _, _, text in self.lines if OURS.search(text)]


def run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], seconds: float, enough: Enough | None = None
) -> Ran:
    """Run a program until it ends, for so many seconds, or until enough lines of its progress have come."""
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        lines = _read(process, began, began + seconds, enough)
    finally:
        code = _ended(process)
    return Ran(time.monotonic() - began, code, lines)


def _read(
    process: subprocess.Popen[bytes], began: float, until: float, enough: Enough | None
) -> list[tuple[float, str, str]]:
    lines: list[tuple[float, str, str]] = []
    rests = {"stdout": b"", "stderr": b""}
    with selectors.DefaultSelector() as streams:
        for name in rests:
            streams.register(getattr(process, name), selectors.EVENT_READ, name)
        while streams.get_map() and (left := until - time.monotonic()) > 0:
            ready = streams.select(min(left, 1.0))
            for key, _ in ready:
                piece = os.read(key.fd, 1 << 16)
                at = time.monotonic() - began
                *whole, rests[key.data] = re.split(rb"[\r\n]", rests[key.data] + piece)
                lines += [(at, key.data, line.decode(errors="replace")) for line in whole]
                if not piece:
                    streams.unregister(key.fileobj)
            if enough is not None and enough.came(lines):
                break
            if not ready and process.poll() is not None:
                break  # a child that outlives it holds its streams
    return lines


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code, or None if the program had to be ended."""
    try:
        return process.wait(0.5)
    except subprocess.TimeoutExpired:
        pass
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.communicate(timeout=ENDING)
            break
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            break
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what it left behind
    process.wait()
    return None

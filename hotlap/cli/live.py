"""Live lines on stderr, drawn over themselves; they show nothing when stderr is not a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TypeVar

from hotlap.records.progress import STATE_NAMES, TIMING, Progress
from hotlap.records.visible import visible
from hotlap.workflows.profile import OBSERVING

EVERY = 0.25  # seconds: the line shares the terminal with the command's own output
Line = TypeVar("Line", bound="StatusLine")


class StatusLine:
    def __init__(self, enabled: bool, every: float = EVERY) -> None:
        self.is_live, self._every = enabled and sys.stderr.isatty(), every
        self._last = 0.0
        self._drawn = False

    def __enter__(self: Line) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def is_due(self) -> bool:
        return self.is_live and time.monotonic() - self._last >= self._every

    def draw(self, text: str) -> None:
        if not self.is_due():
            return
        self._last = time.monotonic()
        width = shutil.get_terminal_size().columns - 1
        # Back to the first column afterwards: the command's next line overwrites ours.
        sys.stderr.write(f"\r\x1b[2K\x1b[2m{visible(text)[:width]}\x1b[0m\r")
        sys.stderr.flush()
        self._drawn = True

    def clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._drawn = False


class LiveLine(StatusLine):
    """Shows how far the second run of a command is, whose output is hidden.

    Nothing is drawn while the command writes to the terminal: neither knows where the other left the cursor.
    """

    _timing_since: float | None = None

    def update(self, stage: str, progress: Progress | None, elapsed: float) -> None:
        if stage != OBSERVING and self.is_due():
            self.draw(self.text(progress, elapsed, time.monotonic()))

    def text(self, progress: Progress | None, elapsed: float, now: float) -> str:
        what = "hotlap, second run on one cached batch"
        if progress is None:
            return f"{what}: waiting for torch, {elapsed:.0f} s"
        if progress.state != TIMING:
            self._timing_since = None
            return f"{what}: {STATE_NAMES[progress.state]}, step {progress.steps}, {elapsed:.0f} s"
        self._timing_since = self._timing_since or now
        return f"{what}: measuring, step {progress.steps}, {progress.fraction:4.0%}{self._eta(progress.fraction, now)}"

    def _eta(self, fraction: float, now: float) -> str:
        spent = now - (self._timing_since or now)
        if fraction <= 0.02 or spent < 0.5:
            return ""
        return f", {spent / fraction - spent:.0f} s left"

"""A live line on stderr while the command runs; shows nothing when stderr is not a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

from hotlap.records.progress import STATE_NAMES, TIMING, Progress

EVERY = 0.25  # seconds: the line shares the terminal with the command's own output


class LiveLine:
    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled and sys.stderr.isatty()
        self._last = 0.0
        self._drawn = False
        self._timing_since: float | None = None

    def __enter__(self) -> LiveLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()

    def update(self, stage: str, progress: Progress | None, elapsed: float) -> None:
        now = time.monotonic()
        if not self._enabled or now - self._last < EVERY:
            return
        self._last = now
        self._draw(self.text(stage, progress, elapsed, now))

    def text(self, stage: str, progress: Progress | None, elapsed: float, now: float) -> str:
        what = "hotlap" if stage == "observing" else "hotlap, second run on one cached batch"
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

    def _draw(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        # Back to the first column afterwards: the command's next line overwrites ours.
        sys.stderr.write(f"\r\x1b[2K\x1b[2m{text[:width]}\x1b[0m\r")
        sys.stderr.flush()
        self._drawn = True

    def _clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

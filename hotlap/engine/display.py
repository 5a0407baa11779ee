"""What a training shows while it runs: a line that changes in a terminal or a notebook, elsewhere a line an epoch.

All of it is written by the log's thread, except for the trainer's own lines, which clear the changing one first.
"""

from __future__ import annotations

import sys
import threading
from typing import Literal, TextIO, get_args

from hotlap.engine.errors import BadRecipe
from hotlap.engine.records import EpochRecord, StepRecord

Shown = Literal["auto", "bar", "lines"]
CLEAR = "\r\x1b[K"


class Display:
    """Writes a line for each epoch, and in between, as a bar, how far the training is."""

    def __init__(self, file: TextIO, is_bar: bool) -> None:
        self.file, self.is_bar = file, is_bar
        self._lock = threading.Lock()
        self._is_dirty = False  # a changing line is shown

    def progress(self, line: str) -> None:
        with self._lock:
            self.file.write(CLEAR + line)
            self.file.flush()
            self._is_dirty = True

    def write(self, record: StepRecord | EpochRecord) -> None:
        if isinstance(record, EpochRecord):
            self.say(epoch_line(record))

    def say(self, line: str) -> None:
        with self._lock:
            self.file.write((CLEAR if self._is_dirty else "") + line + "\n")
            self.file.flush()
            self._is_dirty = False

    def close(self) -> None:
        with self._lock:
            if self._is_dirty:
                self.file.write(CLEAR)
                self.file.flush()
            self._is_dirty = False


def display_for(wanted: Shown, reports_itself: bool) -> Display | None:
    """Return the display, or None where the program reports by itself and nothing else was wanted."""
    if wanted not in get_args(Shown):
        raise BadRecipe(f'progress={wanted!r}; use "auto", "bar", "lines", a function of a line, or None')
    if wanted == "auto" and reports_itself:
        return None
    changes = sys.stderr.isatty() or "ipykernel" in sys.modules
    return Display(sys.stderr, wanted == "bar" or (wanted == "auto" and changes))


def epoch_line(record: EpochRecord) -> str:
    scores = {**record.train_scores, **record.scores}
    values = [f"{name} {value:.4f}" for name, value in scores.items()]
    rate = record.rows / record.seconds if record.seconds > 0 else 0.0
    spent = f"{record.seconds:.1f} s  {rate:.0f} samples/s"
    return "  ".join([f"epoch {record.epoch}", f"loss {record.loss:.5f}", *values, spent])


def clock(seconds: float) -> str:
    """Return a time as hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

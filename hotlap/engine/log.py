"""Progress and records are written by another thread at a bounded rate; the training only hands them over."""

from __future__ import annotations

import contextlib
import json
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from hotlap.engine.display import clock
from hotlap.engine.records import EpochRecord, StepRecord, as_plain

Record = StepRecord | EpochRecord
SECONDS_BETWEEN_LINES = 1.0
MOST_WAITING = 1024


class Sink(Protocol):
    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """Write one JSON object per record; a number that is not finite becomes null, since JSON has no such numbers."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file: TextIO | None = None

    def write(self, record: Record) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", buffering=1)
        self._file.write(json.dumps(_finite(as_plain(record)), allow_nan=False) + "\n")

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class Progress:
    """What the training thread sets and the log's thread prints: plain numbers, no lock, no device."""

    def __init__(self) -> None:
        self.epoch = self.epochs = self.step = self.steps = self.rows = self.rows_ahead = 0
        self.loss: float | None = None

    def line(self, rows_a_second: float) -> str:
        loss = "" if self.loss is None else f"  loss {self.loss:.5f}"
        left = self.rows_ahead - self.rows
        ends = f"  {clock(left / rows_a_second)} left" if rows_a_second > 0 and left > 0 else ""
        epoch = f"epoch {self.epoch}/{self.epochs}  step {self.step}/{self.steps}"
        return f"{epoch}{loss}  {rows_a_second:.0f} samples/s{ends}"


class Log:
    """A sink or `progress` that fails is disabled and reported in `failed`; the training continues."""

    def __init__(self, sinks: Sequence[Sink], progress: Callable[[str], None] | None) -> None:
        self.sinks, self.progress, self.now = list(sinks), progress, Progress()
        self.dropped = 0
        self.failed: str | None = None
        self._disabled: list[Sink] = []
        self._queue: queue.Queue[Record | None] = queue.Queue(maxsize=MOST_WAITING)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self.sinks or self.progress is not None:
            self._thread = threading.Thread(target=self._work, name="hotlap-log", daemon=True)
            self._thread.start()

    def put(self, record: Record) -> None:
        """Wait only for an epoch's record: a sink that is too slow loses records of steps, as reported at the end."""
        if self._thread is not None and not self._handed_over(record, isinstance(record, EpochRecord)):
            self.dropped += 1

    def close(self) -> None:
        if self._thread is not None:
            is_ended = self._handed_over(None, True)
            self._thread.join()
            self._thread = None
            if not is_ended or not self._queue.empty():
                self._fail("the log's thread ended before the training: the last records were not written")
        for sink in self._disabled:
            with contextlib.suppress(Exception):  # its failure was reported when it was disabled
                sink.close()
        for sink in self.sinks:
            try:
                sink.close()
            except Exception as error:  # noqa: BLE001 - a log that fails must not end the training
                self._fail(f"{type(sink).__name__} failed while closing: {_why(error)}")

    def _handed_over(self, record: Record | None, waits: bool) -> bool:
        """Hand over a record, and return whether it was taken; wait only while there is a thread to take it."""
        while self._thread is not None and self._thread.is_alive():
            try:
                self._queue.put(record, waits, SECONDS_BETWEEN_LINES)
            except queue.Full:
                if not waits:
                    return False
            else:
                return True
        return False

    def _work(self) -> None:
        printed, rows = time.monotonic(), 0
        while True:
            try:
                record = self._queue.get(timeout=SECONDS_BETWEEN_LINES)
                if record is None:
                    return
                self._write(record)
            except queue.Empty:
                pass
            elapsed = time.monotonic() - printed
            if self.progress is not None and elapsed >= SECONDS_BETWEEN_LINES:
                now = self.now.rows
                self._print(self.progress, self.now.line(max(0, now - rows) / elapsed))
                printed, rows = time.monotonic(), now

    def _print(self, progress: Callable[[str], None], line: str) -> None:
        try:
            progress(line)
        except Exception as error:  # noqa: BLE001 - as for a sink
            self.progress = None
            self._fail(f"progress failed and was disabled: {_why(error)}")

    def _write(self, record: Record) -> None:
        for sink in list(self.sinks):
            try:
                sink.write(record)
            except Exception as error:  # noqa: BLE001 - a log that fails must not end the training
                self.sinks.remove(sink)
                self._disabled.append(sink)
                self._fail(f"{type(sink).__name__} failed and was disabled: {_why(error)}")

    def _fail(self, line: str) -> None:
        self.failed = line if self.failed is None else f"{self.failed}; {line}"


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()

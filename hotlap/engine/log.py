"""Progress and records, written by another thread at a bounded rate; the training only hands them over."""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from hotlap.engine.errors import EngineError
from hotlap.engine.records import EpochRecord, StepRecord, as_plain

Record = StepRecord | EpochRecord
SECONDS_BETWEEN_LINES = 1.0
MOST_WAITING = 1024


class Sink(Protocol):
    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """One JSON object a record."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file: TextIO | None = None

    def write(self, record: Record) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", buffering=1)
        self._file.write(json.dumps(as_plain(record)) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorBoard:
    """Scalars by step; needs the package tensorboard."""

    def __init__(self, folder: Path | str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise EngineError("TensorBoard output needs tensorboard; type: pip install tensorboard") from error
        self._writer: Any = SummaryWriter(str(folder))

    def write(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self._writer.add_scalar("step/loss", record.loss, record.step)
            return
        scores = {"loss": record.loss, "seconds": record.seconds, "learning_rate": record.learning_rate}
        for name, value in {**scores, **record.losses, **record.scores}.items():
            self._writer.add_scalar(f"epoch/{name}", value, record.steps)

    def close(self) -> None:
        self._writer.close()


class Progress:
    """What the training thread writes down and the log's thread prints: plain numbers, no lock, no device."""

    def __init__(self) -> None:
        self.epoch = self.step = self.steps = self.rows = 0
        self.loss: float | None = None

    def line(self, rows_a_second: float) -> str:
        loss = "" if self.loss is None else f"  loss {self.loss:.5f}"
        return f"epoch {self.epoch}  step {self.step}/{self.steps}{loss}  {rows_a_second:.0f} samples/s"


class Log:
    def __init__(self, sinks: Sequence[Sink], progress: Callable[[str], None] | None) -> None:
        self.sinks, self.progress, self.now = list(sinks), progress, Progress()
        self.dropped = 0
        self.failed: str | None = None
        self._queue: queue.Queue[Record | None] = queue.Queue(maxsize=MOST_WAITING)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self.sinks or self.progress is not None:
            self._thread = threading.Thread(target=self._work, name="hotlap-log", daemon=True)
            self._thread.start()

    def put(self, record: Record) -> None:
        """Never waits: a sink that is too slow loses records of steps, and it is said at the end."""
        if self._thread is None:
            return
        try:
            self._queue.put(record, block=isinstance(record, EpochRecord))
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        for sink in self.sinks:
            sink.close()

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
                self.progress(self.now.line(max(0, now - rows) / elapsed))
                printed, rows = time.monotonic(), now

    def _write(self, record: Record) -> None:
        for sink in list(self.sinks):
            try:
                sink.write(record)
            except Exception as error:  # noqa: BLE001 - a log that fails must not end the training
                self.failed = f"{type(sink).__name__} failed and was left out: {error}"
                self.sinks.remove(sink)


def to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()

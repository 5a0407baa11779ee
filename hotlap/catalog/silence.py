"""A stretch of the program's code run for our own sake: what it prints and logs goes nowhere, and is known."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from threading import get_ident
from typing import Any, cast


@contextmanager
def silenced() -> Iterator[Silence]:
    """Of this thread alone. Warnings pass: each is shown once, whoever was its cause."""
    silence, loggers = Silence(), cast("Any", logging.Logger)
    handle = loggers.callHandlers

    def call_handlers(logger: Any, record: Any) -> None:
        if get_ident() != silence.thread:
            handle(logger, record)
        elif logger.hasHandlers():
            silence.broken = True

    with redirect_stdout(_Silent(sys.stdout, silence)), redirect_stderr(_Silent(sys.stderr, silence)):
        loggers.callHandlers = call_handlers
        try:
            yield silence
        finally:
            loggers.callHandlers = handle


class Silence:
    def __init__(self) -> None:
        self.thread = get_ident()
        self.broken = False  # something was said


class _Silent(io.TextIOBase):
    def __init__(self, stream: Any, silence: Silence) -> None:
        self._stream, self._silence = stream, silence

    def write(self, text: str) -> int:
        warning = sys._getframe(1).f_globals.get("__name__") == "warnings"
        if warning or get_ident() != self._silence.thread:
            return int(self._stream.write(text))
        self._silence.broken = True
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

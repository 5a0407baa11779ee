"""Ctrl-C and SIGTERM end a training between two steps, where its state is whole."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

CAUGHT = (signal.SIGINT, signal.SIGTERM)
USUAL = (signal.SIG_DFL, signal.default_int_handler)


class Interrupts:
    """Catches Ctrl-C and SIGTERM: `received` is set by the first signal, and a second one is passed on at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer the signals within the block. Only the main thread of a process can do this; in other threads nothing
        is deferred, nor are signals that the program ignores or handles itself.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        ours = [number for number in CAUGHT if signal.getsignal(number) in USUAL]
        self._before = {number: signal.signal(number, self._note) for number in ours}
        try:
            yield
        finally:
            self._put_back()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self._put_back()
            signal.raise_signal(number)
        self.received = number

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        self._before = {}

    def pass_on(self) -> None:
        """Do what the signal would have done, now that everything is saved."""
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            raise SystemExit(128 + self.received)

"""A stretch of the program's code run for our own sake: what it prints and logs goes nowhere, and is known."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import RLock, get_ident
from typing import Any, cast

_lock = RLock()
_silences: dict[int, list[Silence]] = {}  # by thread
_streams: list[_Silent] = []
standard_before: list[Any] = []  # in a process that is silent for good
_replaced: list[tuple[Any, str, Any, Any]] = []  # owner, attribute, what was there, what stands there


class Silence:
    def __init__(self) -> None:
        self.broken = False  # something was said


@contextmanager
def silenced() -> Iterator[Silence]:
    """Of this thread alone. Warnings pass: each is shown once, whoever was its cause."""
    silence, thread = Silence(), get_ident()
    with _lock:
        if not _silences:
            _install()
        _silences.setdefault(thread, []).append(silence)
    try:
        yield silence
    finally:
        with _lock:
            _silences[thread].remove(silence)
            if not _silences[thread]:
                del _silences[thread]
            if not _silences:
                _take_back()


def is_standard(stream: Any) -> bool:
    """Whether it is stdout or stderr, as the program knows them."""
    own = [before for owner, _, before, _ in _replaced if owner is sys]
    return any(
        stream is standard
        for standard in (*own, *standard_before, sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    )


def _install() -> None:
    """Once for all threads: each putting back what it found would leave another's in place."""
    loggers = cast("Any", logging.Logger)
    _replace(sys, "stdout", _silent(sys.stdout))
    _replace(sys, "stderr", _silent(sys.stderr))
    _replace(loggers, "callHandlers", _silent_handlers(loggers.callHandlers))


def _silent(stream: Any) -> _Silent:
    """Never dropped: before Python 3.13 another thread's print may be writing to it without holding it."""
    found = next((silent for silent in _streams if silent._stream is stream), None)
    if found is None:
        found = _Silent(stream)
        _streams.append(found)
    return found


def _replace(owner: Any, name: str, instead: Any) -> None:
    _replaced.append((owner, name, getattr(owner, name), instead))
    setattr(owner, name, instead)


def _take_back() -> None:
    while _replaced:
        owner, name, before, instead = _replaced.pop()
        if getattr(owner, name) is instead:  # else the program has put something there
            setattr(owner, name, before)


def _break() -> bool:
    """Whether this thread is to be silent; it is noted that it was not."""
    mine = _silences.get(get_ident())
    if mine is None:
        return False
    for silence in mine:
        silence.broken = True
    return True


def _silent_handlers(handle: Any) -> Any:
    def call_handlers(logger: Any, record: Any) -> None:
        if not (logger.hasHandlers() and _break()):
            handle(logger, record)

    return call_handlers


class _Silent:
    """Not one of Python's streams, which close when they are dropped."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        warning = sys._getframe(1).f_globals.get("__name__") == "warnings"
        if warning or not _break():
            return int(self._stream.write(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

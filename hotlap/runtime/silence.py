"""Silences the program's code when we run it for our own purposes, and notes whether it printed or logged."""

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
standard_before: list[Any] = []  # in a process that is silenced permanently
_replaced: list[tuple[Any, str, Any, Any]] = []  # owner, attribute, the original, the replacement


class Silence:
    def __init__(self) -> None:
        self.broken = False  # something was printed or logged


@contextmanager
def silenced() -> Iterator[Silence]:
    """Silence this thread only. Warnings pass through: each is shown once, whatever caused it."""
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


def _install() -> None:
    """Install once for all threads: if each restored what it found, another's could stay in place."""
    loggers = cast("Any", logging.Logger)
    _replace(sys, "stdout", _silent(sys.stdout))
    _replace(sys, "stderr", _silent(sys.stderr))
    _replace(loggers, "callHandlers", _silent_handlers(loggers.callHandlers))


def _silent(stream: Any) -> _Silent:
    """Return the silent stream, which is never freed: before Python 3.13, print uses it without holding a reference."""
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
        if getattr(owner, name) is instead:  # else the program has set it
            setattr(owner, name, before)


def _break() -> bool:
    """Return whether this thread is silenced, and mark its silences as broken."""
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
    """A stream that drops the text of silenced threads; not one of Python's, which close when freed."""

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

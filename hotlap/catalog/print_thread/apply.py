"""Writes what the training loop prints from another thread, several times a second, complete and in order.

Only `print` is deferred, and only where each line would be written at once: to a terminal, or with flush=True. Any
other use of stdout, a fork and the end of the program first write everything printed before.
"""

from __future__ import annotations

import _thread
import atexit
import builtins
import os
import sys
import threading
import weakref
from collections import deque
from typing import Any

from hotlap.runtime.site import Original, Site

INTERVAL = 0.05  # seconds: nobody reads faster than that
MOST = 1000  # lines that may wait; beyond that, the printing thread writes them
KNOWN = {"sep", "end", "file", "flush"}
REPLACING = ("execv", "execve")  # which all of os.exec* end up calling


def apply(site: Site) -> None:
    site.no_effect("the loop prints no line that Python writes at once")
    lines = Lines(site)
    site.after(site.seams.stepping, lines.begin)


class Lines:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._stream: Any = None  # replaces sys.stdout
        self._pending: deque[str] = deque()
        self._lock = threading.RLock()  # a signal's handler may print while a line is being written
        self._started = False
        self._over = threading.Event()

    def begin(self, *_: Any) -> None:
        """Start deferring at the first step: by then the program has set up its stdout."""
        if self._stream is not None:
            return
        self._site.ledger.wrap(sys, "stdout", self._stand_in)
        self._site.replace(builtins, "print", self._print)
        self._site.replace(sys, "excepthook", self._before)
        for name in REPLACING:
            self._site.replace(os, name, self._before)
        atexit.register(self.drain)
        self._site.ledger.later(self._end)
        _at_fork.watch(self)

    def _stand_in(self, stdout: Any) -> Any:
        self._stream = Stream(stdout, self)
        return self._stream

    def _print(self, original: Original, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        file, stream = kwargs.get("file"), self._stream
        ours = not self._over.is_set() and sys.stdout is stream and (file is None or file is stream)
        if not ours or not (kwargs.get("flush") or _writes_at_once(stream.__wrapped__)) or not kwargs.keys() <= KNOWN:
            return original(*args, **kwargs)
        sep, end = kwargs.get("sep"), kwargs.get("end")
        text = (" " if sep is None else sep).join(map(str, args)) + ("\n" if end is None else end)
        if not _can_be_written(text, stream.__wrapped__):
            return original(*args, **kwargs)  # the program gets its error
        if not self._started:
            self._start()
        self._pending.append(text)
        if len(self._pending) > MOST:
            self.drain()
        return None

    def _start(self) -> None:
        self._started = True
        _thread.start_new_thread(self._run, ())  # which the program's threading.enumerate() does not list
        self._site.applied(f"printed lines are written every {1000 * INTERVAL:.0f} ms")

    def _run(self) -> None:
        while not self._over.wait(INTERVAL):
            try:
                self.drain()
            except Exception:  # noqa: BLE001 such as a closed pipe: the next print gets the error itself
                self._over.set()

    def drain(self) -> None:
        """Write and flush everything printed so far."""
        if not self._pending:
            return
        with self._lock:
            stdout, waiting = self._stream.__wrapped__, []
            while self._pending:
                waiting.append(self._pending.popleft())
            stdout.write("".join(waiting))
            stdout.flush()

    def _before(self, original: Original, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Write pending lines before a traceback or before another program replaces this one."""
        self.drain()
        return original(*args, **kwargs)

    def forked(self) -> None:
        """Stop deferring in a forked child, which has no writer thread."""
        self._over.set()
        self._lock = threading.RLock()

    def _end(self) -> None:
        self._over.set()
        self.drain()
        atexit.unregister(self.drain)


class Stream:
    """Stdout for all uses but `print`: any access first writes the pending lines."""

    __slots__ = ("__weakref__", "__wrapped__", "_drain")
    __wrapped__: Any
    _drain: Any

    def __init__(self, stdout: Any, lines: Lines) -> None:
        object.__setattr__(self, "__wrapped__", stdout)
        object.__setattr__(self, "_drain", lines.drain)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.__wrapped__)

    def __getattr__(self, name: str) -> Any:
        self._drain()
        return getattr(self.__wrapped__, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__wrapped__, name, value)

    def __iter__(self) -> Any:
        return iter(self.__wrapped__)

    def __enter__(self) -> Any:
        return self.__wrapped__.__enter__()

    def __exit__(self, *error: object) -> Any:
        self._drain()
        return self.__wrapped__.__exit__(*error)


def _can_be_written(text: str, stream: Any) -> bool:
    if text.isascii():
        return True
    try:
        text.encode(stream.encoding, stream.errors)
    except (UnicodeError, LookupError, TypeError):  # TypeError: the stream's encoding is unknown
        return False
    return True


def _writes_at_once(stream: Any) -> bool:
    return bool(getattr(stream, "line_buffering", False) or getattr(stream, "write_through", False))


class _AtFork:
    """Writes pending lines before a fork: a child must neither repeat them nor wait for a thread it does not have."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Lines] = weakref.WeakSet()
        self._registered = False

    def watch(self, lines: Lines) -> None:
        self._known.add(lines)
        if not self._registered and hasattr(os, "register_at_fork"):
            self._registered = True
            os.register_at_fork(before=self._before, after_in_child=self._in_child)

    def _before(self) -> None:
        for lines in list(self._known):
            lines.drain()

    def _in_child(self) -> None:
        for lines in list(self._known):
            lines.forked()


_at_fork = _AtFork()

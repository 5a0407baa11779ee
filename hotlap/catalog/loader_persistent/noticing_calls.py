"""The program's calls that would notice idle workers: these are ended first, as at the end of an epoch without hotlap.

Such a call waits for any child, closes descriptors it did not open, forks, signals its process group, changes a limit,
or ends or replaces the process. Forks are seen by a function that Python calls before each; the other calls are
replaced while the entry is at work.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from hotlap.patch.forks import is_of_python
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.site import Site

Spares = Callable[[Any], bool]  # whether a call with this first argument would not notice idle workers


def _never(first: Any) -> bool:
    return False


def _another_process(first: Any) -> bool:
    return isinstance(first, int) and first > 0 and first != os.getpid()


def _one_child(first: Any) -> bool:
    return bool(first not in (os.P_ALL, os.P_PGID))


def _other_signal(first: Any) -> bool:
    return bool(first != signal.SIGCHLD)


CALLS: dict[tuple[str, str], Spares] = {
    **{("os", name): _never for name in ("wait", "wait3", "closerange", "setsid", "setpgid", "setpgrp", "killpg")},
    **{("os", name): _never for name in ("_exit", "abort", "execv", "execve")},
    **{("os", name): _another_process for name in ("waitpid", "wait4", "kill")},
    ("os", "waitid"): _one_child,
    ("signal", "signal"): _other_signal,
    **{("resource", name): _never for name in ("setrlimit", "prlimit")},
}
ELSEWHERE = ("kill", "signal")  # imported by name often, and rarely called like this

_at_work: weakref.WeakSet[NoticingCalls] = weakref.WeakSet()
_under_way: list[str] = []
_torchs_own: set[int] = set()  # threads in which torch starts workers


def under_way() -> bool:
    """Return whether such a call is being made, in another thread: it would not end workers that become idle now."""
    return bool(_under_way)


@contextmanager
def left_to_torch() -> Iterator[None]:
    """Let torch start workers of a loader: it forks, and sets its own handler of SIGCHLD."""
    thread = threading.get_ident()
    nested = thread in _torchs_own
    _torchs_own.add(thread)
    try:
        yield
    finally:
        if not nested:
            _torchs_own.discard(thread)


class NoticingCalls:
    """Calls `end_idle` before each such call, but for those by which torch starts workers."""

    def __init__(self, site: Site, end_idle: Callable[[], None]) -> None:
        self._site, self._end_idle = site, end_idle
        self._by_name: str | None = None
        self._is_watching = False

    def watch(self) -> None:
        """Watch the calls from now on; declines if the program has imported one by name, so that it cannot be seen."""
        if not self._is_watching:
            self._is_watching = True
            self._by_name = _imported_by_name()
            if self._by_name is None:
                self._replace()
        if self._by_name is not None:
            raise EntryDeclined(f"{self._by_name}, so it could notice idle workers unseen")

    def end_idle(self) -> None:
        if threading.get_ident() not in _torchs_own:
            self._site.seams.guard.run("ending idle workers", self._end_idle)

    def _replace(self) -> None:
        import resource  # noqa: F401 not on Windows, where no worker is forked

        for (module, name), spares in CALLS.items():
            if hasattr(sys.modules[module], name):
                self._site.ledger.wrap(sys.modules[module], name, functools.partial(self._layer, name, spares))
        _watch_forks()
        _at_work.add(self)
        self._site.ledger.later(lambda: _at_work.discard(self))

    def _layer(self, name: str, spares: Spares, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if spares(next(iter((*args, *kwargs.values())), None)):
                return original(*args, **kwargs)
            self.end_idle()
            _under_way.append(name)
            try:
                return original(*args, **kwargs)
            finally:
                _under_way.remove(name)

        return call


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(before=_before_fork)


def _before_fork() -> None:
    for calls in list(_at_work):
        calls.end_idle()


def _imported_by_name() -> str | None:
    """Return which module of the program has imported such a function by its name, or None."""
    for importer in list(sys.modules.values()):
        if not issubclass(type(importer), ModuleType):
            continue
        names = object.__getattribute__(importer, "__dict__")  # a lazy module is not loaded by this
        for module, name in CALLS:
            function = names.get(name)
            if name in ELSEWHERE or function is None or function is not getattr(sys.modules.get(module), name, None):
                continue
            file = names.get("__file__")  # a module written in C has none
            if isinstance(file, str) and not is_of_python(file):
                return f"{names.get('__name__')} imports {name} from {module}"
    return None

"""Hides persistent workers from the program's children while it does not read from them.

`multiprocessing.active_children()` returns what it would without hotlap. At the end of an epoch, torch asks the
iterator whether its workers persist, and ends them if not: the object that answers hides them at that point.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from multiprocessing import process, util
from pathlib import Path
from typing import Any

OPEN = Path("/proc/self/fd")
LEAST_LIMITS = {"RLIMIT_NOFILE": 512, "RLIMIT_NPROC": 1024}  # below these, idle workers might exhaust one
PART_IN_USE = 0.25  # of the descriptors that the process may have

FEEDER_ENDS = 1.0  # seconds at most

_hidden: weakref.WeakSet[Any] = weakref.WeakSet()  # their iterator refers to them, and joins them before it is freed
_children: set[Any] = process._children  # type: ignore[attr-defined]


class Persistent:
    """Replaces `_persistent_workers` of an iterator: asked at the end of an epoch, it hides workers that may stay."""

    def __init__(self, iterator: Any, may_stay: Callable[[Any], bool]) -> None:
        self._iterator, self._may_stay = weakref.ref(iterator), may_stay

    def __bool__(self) -> bool:
        iterator = self._iterator()
        if iterator is None or iterator._shutdown or iterator._tasks_outstanding:
            return True
        if not self._may_stay(iterator):
            return False
        _hidden.update(worker for worker in iterator._workers if worker in _children)
        _children.difference_update(iterator._workers)
        return True


def hide_between_epochs(iterator: Any, may_stay: Callable[[Any], bool]) -> None:
    if not isinstance(iterator._persistent_workers, Persistent):
        iterator._persistent_workers = Persistent(iterator, may_stay)
        util.Finalize(None, show, exitpriority=10)  # Python ends the children it knows at exit


def show(workers: Any = None) -> None:
    """Make workers visible again, all of them by default: they are read from again, or the program ends."""
    shown = [worker for worker in _hidden if workers is None or worker in workers]
    _children.update(shown)
    _hidden.difference_update(shown)


def end(iterator: Any) -> None:
    """End workers as torch does at the end of an epoch, and wait until their descriptors are closed."""
    iterator._shutdown_workers()
    _hidden.difference_update(iterator._workers)
    for queue in iterator._index_queues:
        feeder = getattr(queue, "_thread", None)  # it closes the end of the pipe to which it writes
        if feeder is not None:
            feeder.join(FEEDER_ENDS)


def has_room() -> bool:
    """Return whether this process is far from its limits, so that idle workers cannot be what exhausts one."""
    import resource  # not on Windows, where no worker is forked

    soft = {name: resource.getrlimit(getattr(resource, name))[0] for name in LEAST_LIMITS if hasattr(resource, name)}
    if any(0 <= limit < LEAST_LIMITS[name] for name, limit in soft.items()):  # -1: unlimited
        return False
    most = soft["RLIMIT_NOFILE"]
    try:
        return most < 0 or sum(1 for _ in OPEN.iterdir()) <= PART_IN_USE * most
    except OSError:
        return False

"""Hides persistent workers from the program's children while it does not read from them.

`multiprocessing.active_children()` returns what it would without hotlap. At the end of an epoch, torch asks the
iterator whether its workers persist, and ends them if not: the object that answers hides them at that point.
"""

from __future__ import annotations

import weakref
from multiprocessing import process, util
from typing import Any

_hidden: set[Any] = set()  # referenced, as Python's own children are: a freed one cannot be joined
_children: set[Any] = process._children  # type: ignore[attr-defined]


class Persistent:
    """Replaces `_persistent_workers` of an iterator: always true, and hides its workers when it is idle."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = weakref.ref(iterator)

    def __bool__(self) -> bool:
        iterator = self._iterator()
        if iterator is not None and iterator._tasks_outstanding == 0:
            _hidden.difference_update([worker for worker in _hidden if worker.exitcode is not None])
            _hidden.update(worker for worker in iterator._workers if worker in _children)
            _children.difference_update(iterator._workers)
        return True


def hide_between_epochs(iterator: Any) -> None:
    if not isinstance(iterator._persistent_workers, Persistent):
        iterator._persistent_workers = Persistent(iterator)
        util.Finalize(None, show, exitpriority=10)  # Python ends the children it knows at exit


def show(workers: Any = None) -> None:
    """Make workers visible again, all of them by default: they are read from again, or the program ends."""
    shown = [worker for worker in _hidden if workers is None or worker in workers]
    _children.update(shown)
    _hidden.difference_update(shown)

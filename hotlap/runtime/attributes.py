"""Snapshots of an object's attributes, restored after we have run the program's code for our own purposes."""

from __future__ import annotations

from collections import deque
from copy import copy
from operator import is_
from typing import Any

CONTAINERS = (list, dict, set, deque)  # attributes that the code may fill


class Attributes:
    """A snapshot of one object's attributes, including the contents of plain containers among them."""

    def __init__(self, holder: Any) -> None:
        self.of = id(holder)
        self._live = vars(holder)
        self._before = dict(self._live)
        self._contents = [(value, copy(value)) for value in self._before.values() if type(value) in CONTAINERS]

    def changed(self) -> frozenset[str]:
        """Return the names of the attributes that have changed."""
        now, before = self._live, self._before
        filled = {id(container) for container, contents in self._contents if not holds_the_same(container, contents)}
        names = (
            name for name in {**before, **now} if now.get(name) is not before.get(name) or id(now.get(name)) in filled
        )
        return frozenset(names)

    def restore(self) -> None:
        live, before = self._live, self._before
        for name in [name for name in live if name not in before]:
            del live[name]
        for name, value in before.items():
            if name not in live or live[name] is not value:
                live[name] = value
        for container, contents in self._contents:
            refill(container, contents)


def holds_the_same(container: Any, contents: Any) -> bool:
    """Return whether both containers hold the very same objects."""
    if len(container) != len(contents) or not all(map(is_, container, contents)):
        return False
    return not isinstance(container, dict) or all(map(is_, container.values(), contents.values()))


def refill(container: Any, contents: Any) -> None:
    if not holds_the_same(container, contents):
        container.clear()
        (container.update if isinstance(container, dict | set) else container.extend)(contents)

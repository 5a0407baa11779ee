"""What an object of the program holds, put back after code of its own was run for our sake."""

from __future__ import annotations

from collections import deque
from copy import copy
from operator import is_
from typing import Any

CONTAINERS = (list, dict, set, deque)  # attributes that the code may fill


class Attributes:
    """Of one object as they are now; of plain containers among them what they hold."""

    def __init__(self, holder: Any) -> None:
        self.of = id(holder)
        self._live = vars(holder)
        self._before = dict(self._live)
        self._contents = [(value, copy(value)) for value in self._before.values() if type(value) in CONTAINERS]

    def changed(self) -> frozenset[str]:
        """Their names."""
        now, before = self._live, self._before
        filled = {id(container) for container, contents in self._contents if not _alike(container, contents)}
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
            if not _alike(container, contents):
                container.clear()
                (container.update if isinstance(container, dict | set) else container.extend)(contents)


def _alike(one: Any, other: Any) -> bool:
    """Whether they hold the very same things."""
    if len(one) != len(other) or not all(map(is_, one, other)):
        return False
    return not isinstance(one, dict) or all(map(is_, one.values(), other.values()))

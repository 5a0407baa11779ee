"""Mappings from objects, by identity, that neither mark an object nor keep it alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

MOST_ALIVE = 2  # objects that cannot be weakly referenced

Value = TypeVar("Value")


class ByIdentity(Generic[Value]):
    """Maps objects to values by id, since objects may be unhashable or equal. A value must not hold its object."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Callable[[], Any], Value]] = {}

    def get(self, obj: Any) -> Value | None:
        held = self._held.get(id(obj))
        return held[1] if held is not None and held[0]() is obj else None

    def put(self, obj: Any, value: Value) -> None:
        held, key = self._held, id(obj)

        def gone(reference: weakref.ref[Any]) -> None:
            if key in held and held[key][0] is reference:  # else the id belongs to another object by now
                del held[key]

        held[key] = (weakref.ref(obj, gone), value)

    def drop(self, obj: Any) -> None:
        if obj in self:
            del self._held[id(obj)]

    def clear(self) -> None:
        self._held.clear()

    def cache_clear(self) -> None:
        """Clear the mapping under the name that functools caches use: see patch/ending.py."""
        self.clear()

    def things(self) -> Iterator[Any]:
        """Yield the objects that are still alive."""
        for reference, _ in list(self._held.values()):
            alive = reference()
            if alive is not None:
                yield alive

    def values(self) -> list[Value]:
        return [value for _, value in list(self._held.values())]

    def __contains__(self, obj: Any) -> bool:
        held = self._held.get(id(obj))
        return held is not None and held[0]() is obj

    def __len__(self) -> int:
        return len(self._held)


class AlsoOfLists(ByIdentity[Value]):
    """A mapping that also takes objects without weak references, such as lists.

    It keeps the few used last alive, so that their ids are not reused.
    """

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, Any] = {}  # the most recently used last

    def get(self, obj: Any) -> Value | None:
        if id(obj) in self._alive:
            self._alive[id(obj)] = self._alive.pop(id(obj))
        return super().get(obj)

    def put(self, obj: Any, value: Value) -> None:
        try:
            super().put(obj, value)
        except TypeError:
            self._keep(obj, value)

    def _keep(self, obj: Any, value: Value) -> None:
        self._held[id(obj)] = (lambda: obj, value)
        self._alive[id(obj)] = obj
        while len(self._alive) > MOST_ALIVE:
            oldest = next(iter(self._alive))
            del self._held[oldest]  # before the object, whose id is free afterwards
            del self._alive[oldest]

    def clear(self) -> None:
        super().clear()
        self._alive.clear()

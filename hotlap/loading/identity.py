"""What belongs to an object, by identity and for as long as it lives: it is neither marked nor kept alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

MOST_ALIVE = 2  # of what cannot be weakly referenced

Value = TypeVar("Value")


class ByIdentity(Generic[Value]):
    """By id, because what is seen may be equal to others or unhashable. A value must not hold its object."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Callable[[], Any], Value]] = {}

    def get(self, thing: Any) -> Value | None:
        held = self._held.get(id(thing))
        return held[1] if held is not None and held[0]() is thing else None

    def put(self, thing: Any, value: Value) -> None:
        held, key = self._held, id(thing)

        def gone(reference: weakref.ref[Any]) -> None:
            if key in held and held[key][0] is reference:  # else the id has another owner by now
                del held[key]

        held[key] = (weakref.ref(thing, gone), value)

    def drop(self, thing: Any) -> None:
        if thing in self:
            del self._held[id(thing)]

    def clear(self) -> None:
        self._held.clear()

    def cache_clear(self) -> None:
        """As what functools remembers is cleared: see patch/ending.py."""
        self.clear()

    def things(self) -> Iterator[Any]:
        """Those alive."""
        for reference, _ in list(self._held.values()):
            alive = reference()
            if alive is not None:
                yield alive

    def values(self) -> list[Value]:
        return [value for _, value in list(self._held.values())]

    def __contains__(self, thing: Any) -> bool:
        held = self._held.get(id(thing))
        return held is not None and held[0]() is thing

    def __len__(self) -> int:
        return len(self._held)


class AlsoOfLists(ByIdentity[Value]):
    """And of whatever else cannot be weakly referenced: kept alive, so that its id stays its own, until others have
    been used since.
    """

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, Any] = {}  # the one used last at the end

    def get(self, thing: Any) -> Value | None:
        if id(thing) in self._alive:
            self._alive[id(thing)] = self._alive.pop(id(thing))
        return super().get(thing)

    def put(self, thing: Any, value: Value) -> None:
        try:
            super().put(thing, value)
        except TypeError:
            self._keep(thing, value)

    def _keep(self, thing: Any, value: Value) -> None:
        self._held[id(thing)] = (lambda: thing, value)
        self._alive[id(thing)] = thing
        while len(self._alive) > MOST_ALIVE:
            oldest = next(iter(self._alive))
            del self._held[oldest]  # before the thing, whose id is free afterwards
            del self._alive[oldest]

    def clear(self) -> None:
        super().clear()
        self._alive.clear()

"""What is known of an object, for as long as the object lives. Objects may be unhashable, or equal to everything."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

Known = TypeVar("Known")


class ByIdentity(Generic[Known]):
    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Known]] = {}

    def get(self, thing: Any) -> Known | None:
        entry = self._known.get(id(thing))
        return None if entry is None else entry[1]

    def put(self, thing: Any, known: Known) -> None:
        key, mine = id(thing), self._known
        try:
            held: Any = weakref.ref(thing, lambda _: mine.pop(key, None))
        except TypeError:  # a list, say: it is kept alive, so that its id stays its own
            held = thing
        self._known[key] = (held, known)

    def clear(self) -> None:
        self._known.clear()


def same_function(one: Any, other: Any) -> bool:
    """Also of a function made anew each time from the same line, with the same values in it."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    try:
        if getattr(one, "__code__", None) is not None:
            return one.__code__ is other.__code__ and _inside(one) == _inside(other)
        return bool(one == other)
    except Exception:  # noqa: BLE001 an array in a closure, an __eq__ of the user's
        return False


def _inside(function: Any) -> tuple[Any, ...]:
    cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    return cells, function.__defaults__, function.__kwdefaults__, getattr(function, "__self__", None)

"""Which datasets and functions are the same, and of which there are too many."""

from __future__ import annotations

import weakref
from types import MethodType
from typing import Any

MANY = 6


class Often:
    """Classes of which a program makes one dataset after another: proving each costs more than reading it once."""

    def __init__(self) -> None:
        self._of: dict[type, tuple[int, int]] = {}  # datasets proven, and those of them read again

    def proven(self, kind: type) -> None:
        made, again = self._of.get(kind, (0, 0))
        self._of[kind] = made + 1, again

    def read_again(self, kind: type) -> None:
        made, again = self._of.get(kind, (0, 0))
        self._of[kind] = made, again + 1

    def why_not(self, kind: type) -> str | None:
        made, again = self._of.get(kind, (0, 0))
        too_often = made >= MANY and 2 * again < made
        return f"{made} of its kind were made, and most of them read once" if too_often else None


class Weakly:
    """A function or object that is not kept alive; None once it is gone, or where it cannot be referenced."""

    def __init__(self, thing: Any) -> None:
        try:
            self._get: Any = weakref.WeakMethod(thing) if isinstance(thing, MethodType) else weakref.ref(thing)
        except TypeError:
            self._get = None

    def __call__(self) -> Any:
        return None if self._get is None else self._get()


def same_function(one: Any, other: Any) -> bool:
    """Also of a function made anew each time from the same line, with the same values in it."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    try:
        if getattr(one, "__code__", None) is not None:
            return one.__code__ is other.__code__ and _inside(one) == _inside(other)
        if getattr(type(one), "__eq__", None) is object.__eq__ and hasattr(one, "__dict__"):
            return bool(vars(one) == vars(other))  # made anew for each loader
        return bool(one == other)
    except Exception:  # noqa: BLE001 an array in a closure, an __eq__ of the user's
        return False


def _inside(function: Any) -> tuple[Any, ...]:
    cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    return cells, function.__defaults__, function.__kwdefaults__, getattr(function, "__self__", None)

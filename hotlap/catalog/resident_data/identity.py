"""Which datasets and functions are the same, and of which there are too many."""

from __future__ import annotations

import weakref
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from hotlap.loading.purity.pure_operations import same_atom

MANY = 6


class RepeatedClasses:
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
    """Also of a function or object made anew each time in the same way, with the very same values in it."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, partial):
        return same_function(one.func, other.func) and _alike(
            (one.args, sorted(one.keywords.items())), (other.args, sorted(other.keywords.items()))
        )
    if isinstance(one, MethodType):
        return one.__func__ is other.__func__ and one.__self__ is other.__self__
    if isinstance(one, FunctionType):
        return one.__code__ is other.__code__ and _alike(_inside(one), _inside(other))
    kind: Any = type(one)
    if kind.__eq__ is not object.__eq__ or hasattr(kind, "__slots__") or not hasattr(one, "__dict__"):
        return False
    return _alike(sorted(vars(one).items()), sorted(vars(other).items()))


def _inside(function: FunctionType) -> tuple[Any, ...]:
    cells = tuple(_content(cell) for cell in function.__closure__ or ())
    by_name = sorted((function.__kwdefaults__ or {}).items())
    return id(function.__globals__), cells, function.__defaults__, by_name, sorted(vars(function).items())


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _alike(one: Any, other: Any) -> bool:
    """The same objects, or equal numbers and texts of one type; 0.0 is not -0.0."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) in (tuple, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if type(one) in (int, float, bool, complex, str, bytes):
        return same_atom(one, other)
    return isinstance(one, FunctionType | partial | MethodType) and same_function(one, other)

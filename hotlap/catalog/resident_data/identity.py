"""Decides which functions are the same, and of which classes a program makes too many datasets."""

from __future__ import annotations

import weakref
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from hotlap.loading.purity.plain import same_atom

MANY = 6


class RepeatedClasses:
    """Counts datasets per class: if a program keeps making new ones, proving each costs more than reading it once."""

    def __init__(self) -> None:
        self._of: dict[type, tuple[int, int]] = {}  # datasets proven, and how many of them were read again

    def proven(self, kind: type) -> None:
        made, again = self._of.get(kind, (0, 0))
        self._of[kind] = made + 1, again

    def read_again(self, kind: type) -> None:
        made, again = self._of.get(kind, (0, 0))
        self._of[kind] = made, again + 1

    def why_not(self, kind: type) -> str | None:
        made, again = self._of.get(kind, (0, 0))
        too_often = made >= MANY and 2 * again < made
        return f"{made} datasets of its class were made, and most were read only once" if too_often else None


class Weakly:
    """Refers to a function or object without keeping it alive; None once it is gone or if it has no weak references."""

    def __init__(self, target: Any) -> None:
        try:
            self._get: Any = weakref.WeakMethod(target) if isinstance(target, MethodType) else weakref.ref(target)
        except TypeError:
            self._get = None

    def __call__(self) -> Any:
        return None if self._get is None else self._get()


def same_function(first: Any, second: Any) -> bool:
    """Return whether two functions or objects are the same, or were made by the same code with the same values."""
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, partial):
        return same_function(first.func, second.func) and _alike(
            (first.args, sorted(first.keywords.items())), (second.args, sorted(second.keywords.items()))
        )
    if isinstance(first, MethodType):
        return first.__func__ is second.__func__ and first.__self__ is second.__self__
    if isinstance(first, FunctionType):
        return first.__code__ is second.__code__ and _alike(_inside(first), _inside(second))
    kind: Any = type(first)
    if kind.__eq__ is not object.__eq__ or hasattr(kind, "__slots__") or not hasattr(first, "__dict__"):
        return False
    return _alike(sorted(vars(first).items()), sorted(vars(second).items()))


def _inside(function: FunctionType) -> tuple[Any, ...]:
    cells = tuple(_content(cell) for cell in function.__closure__ or ())
    by_name = sorted((function.__kwdefaults__ or {}).items())
    return id(function.__globals__), cells, function.__defaults__, by_name, sorted(vars(function).items())


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _alike(first: Any, second: Any) -> bool:
    """Return whether these are the same object, or equal numbers or strings of one type; 0.0 is not -0.0."""
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if type(first) in (tuple, list):
        return len(first) == len(second) and all(map(_alike, first, second))
    if type(first) in (int, float, bool, complex, str, bytes):
        return same_atom(first, second)
    return isinstance(first, FunctionType | partial | MethodType) and same_function(first, second)

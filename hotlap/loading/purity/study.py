"""The result of reading a dataset's code: that fetching is pure, and everything it depends on."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CellType
from typing import Any

from hotlap.loading.purity.plain import CONTAINERS, is_atom
from hotlap.loading.purity.values import NOTHING, Value

DEEPEST = 12
MOST_SECONDS = 0.2  # of this thread's time, since other programs may be busy


Reference = Callable[[], Any]


def reference(obj: Any) -> Reference:
    try:
        return weakref.ref(obj)
    except TypeError:
        return lambda: obj


class Impure(Exception):
    """Raised with the reason why fetching is not known to be pure, and the line."""


@dataclass(frozen=True, slots=True)
class Load:
    """An array or container of the program that the code loads."""

    value: Value
    obj: Any
    depth: int  # of nested calls


@dataclass
class Study:
    """What fetching reads; it does not keep those objects alive if they can be weakly referenced."""

    attributes: dict[tuple[int, str], tuple[Reference, str]] = field(default_factory=dict)  # of instances
    names: dict[tuple[int, str], tuple[Mapping[str, Any], str]] = field(default_factory=dict)  # globals, class members
    cells: dict[int, CellType] = field(default_factory=dict)
    containers: dict[int, Any] = field(default_factory=dict)  # those whose contents are not all plain
    texts: set[str] = field(default_factory=set)  # in the code, which may name a file
    folders: set[str] = field(default_factory=set)  # how the names of files begin that compiled code opens
    opened: dict[tuple[int, str], tuple[Reference, str, str]] = field(default_factory=dict)  # set at the first fetch
    reads_files: bool = False
    may_draw: bool = False  # from the streams of torch, NumPy and random
    ordered: bool = False  # the last digits depend on the number of threads
    result: Value = NOTHING
    by_row: set[int] = field(default_factory=set)  # arrays and lists of which an item reads the element at its index
    by_key: set[int] = field(default_factory=set)  # those of which it reads an element under a fixed key
    as_whole: set[int] = field(default_factory=set)  # those of which it may read any element
    loads: list[Load] = field(default_factory=list)  # while code is read: those that it may read any element of
    depth: int = 0
    alive: list[Any] = field(default_factory=list)  # while code is read, so that ids are not reused
    until: float = field(default_factory=lambda: time.thread_time() + MOST_SECONDS)

    def note_attribute(self, owner: Any, name: str) -> None:
        """Note that an attribute is read, and the class, which the program may replace."""
        for attribute in (name, "__class__"):
            if (id(owner), attribute) not in self.attributes:
                self.attributes[id(owner), attribute] = reference(owner), attribute
                self.alive.append(owner)

    def load(self, value: Value, obj: Any) -> None:
        self.loads.append(Load(value, obj, self.depth))

    def looked_up(self, value: Value, since: int, by_row: bool = False) -> None:
        """Note that only the form or one element is read of a value that was just loaded.

        With `by_row` it is the element at the item's index, otherwise one that is loaded separately.
        """
        found = next((n for n in range(since, len(self.loads)) if self.loads[n].value is value), None)
        if found is not None and self.loads[found].depth == self.depth:
            loaded = self.loads.pop(found).obj
            if by_row:
                self.by_row.add(id(loaded))

    def end(self) -> Study:
        for load in self.loads:
            self.as_whole.update(_with_arrays_inside(load.obj))
        self.by_row -= self.as_whole | self.by_key
        self.loads.clear()
        self.alive.clear()
        return self

    def check_time(self) -> None:
        if time.thread_time() > self.until:
            raise Impure(f"reading its code takes more than {MOST_SECONDS} s")


def _with_arrays_inside(obj: Any, depth: int = 0) -> Iterator[int]:
    yield id(obj)
    if type(obj) in CONTAINERS and depth < DEEPEST:
        for element in obj.values() if isinstance(obj, dict) else obj:
            if not is_atom(type(element)):
                yield from _with_arrays_inside(element, depth + 1)

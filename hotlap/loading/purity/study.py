"""What reading the code of a dataset has shown: that fetching is pure, and all that it depends on."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CellType
from typing import Any

from hotlap.loading.purity.pure_operations import CONTAINERS, is_atom
from hotlap.loading.purity.values import NOTHING, Value

DEEPEST = 12
MOST_SECONDS = 0.2  # of this thread: other programs may be busy


Reference = Callable[[], Any]


def reference(thing: Any) -> Reference:
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing


class Impure(Exception):
    """Why fetching is not known to be pure, with the line."""


@dataclass(frozen=True, slots=True)
class Load:
    """An array or container of the program's that code has come upon."""

    value: Value
    thing: Any
    depth: int  # of calls


@dataclass
class Study:
    """What fetching reads. It does not keep the objects alive that it is about, if they can be referenced weakly."""

    attributes: dict[tuple[int, str], tuple[Reference, str]] = field(default_factory=dict)  # of instances
    names: dict[tuple[int, str], tuple[Mapping[str, Any], str]] = field(default_factory=dict)  # globals, class members
    cells: dict[int, CellType] = field(default_factory=dict)
    containers: dict[int, Any] = field(default_factory=dict)  # whose contents are not all plain
    texts: set[str] = field(default_factory=set)  # in the code: they may name a file
    opened: dict[tuple[int, str], tuple[Reference, str]] = field(default_factory=dict)  # set at the first fetch
    reads_files: bool = False
    may_draw: bool = False  # from the streams of torch, NumPy and random
    ordered: bool = False  # the last digits depend on the number of threads
    result: Value = NOTHING
    by_row: set[int] = field(default_factory=set)  # arrays and lists of which an item reads the element of its number
    as_whole: set[int] = field(default_factory=set)  # of which it may read any
    loads: list[Load] = field(default_factory=list)  # while code is read: those of which any may be read, so far
    depth: int = 0
    alive: list[Any] = field(default_factory=list)  # while code is read, so that an id stays its object's own
    until: float = field(default_factory=lambda: time.thread_time() + MOST_SECONDS)

    def note_attribute(self, owner: Any, name: str) -> None:
        """Also which class it is of: the program may give it another."""
        for attribute in (name, "__class__"):
            if (id(owner), attribute) not in self.attributes:
                self.attributes[id(owner), attribute] = reference(owner), attribute
                self.alive.append(owner)

    def load(self, value: Value, thing: Any) -> None:
        self.loads.append(Load(value, thing, self.depth))

    def looked_up(self, value: Value, since: int, by_row: bool = False) -> None:
        """Of what has just been loaded, only its form is read, or one element: that of the item's number with
        `by_row`, else one that is a load of its own.
        """
        found = next((n for n in range(since, len(self.loads)) if self.loads[n].value is value), None)
        if found is not None and self.loads[found].depth == self.depth:
            loaded = self.loads.pop(found).thing
            if by_row:
                self.by_row.add(id(loaded))

    def end(self) -> Study:
        for load in self.loads:
            self.as_whole.update(_with_arrays_inside(load.thing))
        self.by_row -= self.as_whole
        self.loads.clear()
        self.alive.clear()
        return self

    def check_time(self) -> None:
        if time.thread_time() > self.until:
            raise Impure(f"reading its code takes more than {MOST_SECONDS} s")


def _with_arrays_inside(thing: Any, depth: int = 0) -> Iterator[int]:
    yield id(thing)
    if type(thing) in CONTAINERS and depth < DEEPEST:
        for element in thing.values() if isinstance(thing, dict) else thing:
            if not is_atom(type(element)):
                yield from _with_arrays_inside(element, depth + 1)

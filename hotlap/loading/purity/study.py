"""What reading the code of a dataset has shown: that fetching is pure, and all that it depends on."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CellType
from typing import Any

from hotlap.loading.purity.values import NOTHING, Value

MOST_SECONDS = 0.2  # of this thread: other programs may be busy


Reference = Callable[[], Any]


def reference(thing: Any) -> Reference:
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing


class Impure(Exception):
    """Why fetching is not known to be pure, with the line."""


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
    alive: list[Any] = field(default_factory=list)  # while code is read, so that an id stays its object's own
    until: float = field(default_factory=lambda: time.thread_time() + MOST_SECONDS)

    def note_attribute(self, owner: Any, name: str) -> None:
        """Also which class it is of: the program may give it another."""
        for one in (name, "__class__"):
            if (id(owner), one) not in self.attributes:
                self.attributes[id(owner), one] = reference(owner), one
                self.alive.append(owner)

    def end(self) -> Study:
        self.alive.clear()
        return self

    def check_time(self) -> None:
        if time.thread_time() > self.until:
            raise Impure(f"reading its code takes more than {MOST_SECONDS} s")

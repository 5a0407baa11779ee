"""What the code being read changes in what it has created: names, containers and fields.

Loops, and expressions that write, are read again until nothing more is learned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hotlap.loading.purity.created import Instance
from hotlap.loading.purity.frames import joined, same_names, with_parents
from hotlap.loading.purity.questions import refuse_lazy
from hotlap.loading.purity.reading import Reading
from hotlap.loading.purity.study import Impure, Study
from hotlap.loading.purity.values import NOTHING, UNKNOWN, Value, either, flat

ROUNDS = 6  # at most, through a loop, until nothing more is learned


class Changes(Reading):
    def __init__(self, study: Study) -> None:
        super().__init__(study)
        self.stores = 0  # writes into what the call created: the clock of changes
        self.undecided = 0  # number of enclosing conditions that may or may not hold
        # Of created objects: when a field changed, and when the object was created
        self._fields_changed: list[tuple[int, int]] = []

    def repeated(self, read: Callable[[], Value]) -> Value:
        """Read code that runs any number of times, until nothing more is learned."""
        found = NOTHING
        for _ in range(ROUNDS):
            before, began = dict(self.frame.names), self.stores
            with self.perhaps():
                found = either([found, read()])
            self.frame.names = joined([before, self.frame.names])
            if same_names(before, self.frame.names) and not self._changed_since(began):
                return found
        raise Impure("has a loop whose values do not settle")

    def settled(self, read: Callable[[], Any]) -> Any:
        """Read an expression again while it changes values, since it may have read them before it wrote."""
        for _ in range(ROUNDS):
            began = self.stores
            found = read()
            if not self._changed_since(began):
                return found
        raise Impure("has an expression whose values do not settle")

    def _changed_since(self, began: int) -> bool:
        """Return whether anything that existed at that time has changed since."""
        if self.stores == began:
            return False
        if any(when > began >= made for when, made in self._fields_changed):
            return True
        return any(outer.changed > began for frame in self.frames for outer in with_parents(frame))

    @contextmanager
    def perhaps(self) -> Iterator[None]:
        self.undecided += 1
        try:
            yield
        finally:
            self.undecided -= 1

    def put_into_a_container(self, *values: Value) -> None:
        """Note a write into a container that the call created; which one is not tracked, so it may be any."""
        self.stores += 1
        for value in values:
            refuse_lazy(value)
        stored = either([*values, *(part for value in values for part in value.parts())])
        for frame in self.all_frames:
            for name, value in frame.names.items():
                now = self._perhaps_with(value, stored)
                if now is not value and now.key() != value.key():
                    frame.names[name], frame.changed = now, self.stores

    def _perhaps_with(self, value: Value, stored: Value) -> Value:
        for made in value.made:
            if isinstance(made, Instance):
                for name, held in made.fields.items():
                    self.set_field(made, name, self._perhaps_with(held, stored))
        if not value.plain or value.array or value.known is not UNKNOWN:
            return value
        whole = replace(value, steady=False, deep=value.deep and stored.deep)
        if value.items is None and value.element is None:
            return whole
        inside = either([*(self._perhaps_with(part, flat(stored)) for part in value.parts()), stored])
        return replace(whole, items=None, element=replace(inside, known=UNKNOWN))

    def set_field(self, made: Instance, name: str, value: Value) -> None:
        self.stores += 1
        refuse_lazy(value)
        before = made.fields.get(name)
        if before is None or before.key() != value.key():
            made.version += 1
            self._fields_changed.append((self.stores, made.born))
        made.fields[name] = value

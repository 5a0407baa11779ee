"""Looks up the classes of a project: what they inherit from, and where their methods are defined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from hotlap.analysis.parse import torch_names
from hotlap.analysis.parse.facts import Class, Summary
from hotlap.analysis.parse.terms import MODULE, Term

_MOST_OVERRIDES = 64  # of a method; with more, a base class says nothing about any one of them


class Reference(NamedTuple):
    """A function of the project."""

    path: str
    name: str


class Classes:
    def __init__(self, files: Mapping[str, Summary]) -> None:
        self.files = files
        self._lineages: dict[tuple[str, str], list[tuple[str, Class]]] = {}
        self._modules: dict[tuple[str, str], bool] = {}
        self._methods: dict[tuple[str, str, str, bool], Reference | None] = {}

    def _place(self, term: Term, origin: str) -> tuple[str, str] | None:
        """Return where a name of the project is defined."""
        raise NotImplementedError

    def class_of(self, term: Term, origin: str) -> tuple[str, Class] | None:
        """Return the project's class that a resolved term is an instance of."""
        if isinstance(term, tuple) and term[0] == "instance":
            summary = self.files.get(term[1])
            found = summary.classes.get(term[2]) if summary else None
            return (term[1], found) if found else None
        return None

    def lineage(self, path: str, owner: Class) -> list[tuple[str, Class]]:
        """Return the class and its bases within the project."""
        known = self._lineages.get((path, owner.name))
        if known is None:
            known = self._lineages[path, owner.name] = list(self._lineage(path, owner))
        return known

    def _lineage(self, path: str, owner: Class) -> Iterator[tuple[str, Class]]:
        waiting, seen = [(path, owner)], set()
        while waiting:
            where, current = waiting.pop(0)
            if (where, current.name) in seen:
                continue
            seen.add((where, current.name))
            yield where, current
            for base in current.bases:
                place = self._place(base, where)
                if place and place[1] in self.files[place[0]].classes:
                    waiting.append((place[0], self.files[place[0]].classes[place[1]]))

    @cached_property
    def _heirs(self) -> dict[tuple[str, str], list[tuple[str, Class]]]:
        """The direct subclasses of each class of the project."""
        found: dict[tuple[str, str], list[tuple[str, Class]]] = defaultdict(list)
        for path, summary in self.files.items():
            for owner in summary.classes.values():
                for base in owner.bases:
                    place = self._place(base, path)
                    if place is not None and place != (path, owner.name):
                        found[place].append((path, owner))
        return found

    def heirs(self, path: str, owner: Class) -> Iterator[tuple[str, Class]]:
        """Yield the subclasses of a class, direct or not."""
        waiting, seen = [(path, owner.name)], {(path, owner.name)}
        while waiting:
            for where, heir in self._heirs.get(waiting.pop(), ()):
                if (where, heir.name) not in seen:
                    seen.add((where, heir.name))
                    waiting.append((where, heir.name))
                    yield where, heir

    def overrides(self, path: str, owner: Class, name: str) -> list[Reference]:
        """Return the overrides of a method in subclasses, which `self.method()` may run as well."""
        every = self.heirs(path, owner)
        found = [Reference(where, f"{heir.name}.{name}") for where, heir in every if name in heir.methods]
        return found if len(found) <= _MOST_OVERRIDES else []

    def siblings(self, path: str, owner: Class, name: str) -> Iterator[Reference]:
        """Yield the methods of the same name in other classes that inherit from the same class of the project."""
        for base in owner.bases:
            place = self._place(base, path)
            for where, heir in self._heirs.get(place, ()) if place is not None else ():
                if name in heir.methods and (where, heir.name) != (path, owner.name):
                    yield Reference(where, f"{heir.name}.{name}")

    def base_names(self, path: str, owner: Class) -> set[str]:
        """Return the last and full names of everything the class inherits from, in the project or not."""
        names: set[str] = set()
        for _, ancestor in self.lineage(path, owner):
            names.update(ancestor.base_names)
            names.update(base[1] for base in ancestor.bases if isinstance(base, tuple) and base[0] == "name")
        return names

    def is_module(self, path: str, owner: Class) -> bool:
        known = self._modules.get((path, owner.name))
        if known is None:
            known = self._modules[path, owner.name] = self._is_module(path, owner)
        return known

    def _is_module(self, path: str, owner: Class) -> bool:
        names = self.base_names(path, owner)
        if names & torch_names.MODULE_BASES:
            return True
        if any(name.startswith(("torch.nn.", "torchvision.models")) for name in names):
            return True
        inherits = any(name not in ("object", "ABC", "Generic", "Protocol", "") for name in names)
        return (
            inherits
            and any("forward" in ancestor.methods for _, ancestor in self.lineage(path, owner))
            and not any("Function" in name for name in names)
        )

    def is_model(self, answer: Term) -> bool:
        """Match a module of torch, or an object of a class that is one."""
        if isinstance(answer, tuple) and answer[0] == "instance":
            return self.is_module(answer[1], self.files[answer[1]].classes[answer[2]])
        if isinstance(answer, tuple) and answer[0] == "join":
            return any(map(self.is_model, answer[1:]))
        return answer == MODULE

    def is_loader(self, answer: Term) -> bool:
        """Match an object of a class that inherits from torch's loader."""
        if not isinstance(answer, tuple) or answer[0] != "instance":
            return False
        names = self.base_names(answer[1], self.files[answer[1]].classes[answer[2]])
        return any(name.endswith("DataLoader") for name in names)

    def gives_in_turn(self, answer: Term) -> bool:
        """Match an object of the project that defines its own iteration; modules, such as layer lists, do not count."""
        if not isinstance(answer, tuple) or answer[0] != "instance":
            return False
        owner = self.files[answer[1]].classes[answer[2]]
        return self.method(answer[1], owner, "__iter__") is not None and not self.is_module(answer[1], owner)

    def is_own_loader(self, answer: Term) -> bool:
        """Match an object whose class is named a loader: it yields batches, whatever it inherits from."""
        named = isinstance(answer, tuple) and answer[0] == "instance"
        return named and str(answer[2]).rsplit(".", 1)[-1].endswith("Loader")

    def is_dataset(self, path: str, owner: Class) -> bool:
        return any(name.endswith("Dataset") for name in self.base_names(path, owner))

    def method(self, path: str, owner: Class, name: str, skip_own: bool = False) -> Reference | None:
        key = (path, owner.name, name, skip_own)
        if key not in self._methods:
            self._methods[key] = next(
                (
                    Reference(where, f"{ancestor.name}.{name}")
                    for where, ancestor in self.lineage(path, owner)
                    if name in ancestor.methods and not (skip_own and ancestor is owner)
                ),
                None,
            )
        return self._methods[key]

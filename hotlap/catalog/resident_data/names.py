"""What the code of a dataset uses beside what the dataset holds: globals, attributes of modules and of classes.

Only code of the program itself is followed, from the fetching of an item on; not libraries, and not other methods.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping
from functools import cache, partial
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

FETCHING = ("__getitem__", "__getitems__", "__call__", "forward")  # of a dataset, a transform, a collate object
MOST_OBJECTS, MOST_ITEMS = 2000, 50  # looked at; of one container
PACKAGES = ("site-packages", "dist-packages")
DESCRIPTORS = (FunctionType, staticmethod, classmethod, property)

Place = tuple[Mapping[str, Any], str]  # where a name is looked up


class Names:
    """Where they are; what is there may be another object later."""

    def __init__(self, *things: Any) -> None:
        self._places: dict[tuple[int, str], Place] = {}
        self._seen: set[int] = set()
        self._waiting = list(things)
        while self._waiting and len(self._seen) < MOST_OBJECTS:
            thing = self._waiting.pop()
            if id(thing) not in self._seen:
                self._seen.add(id(thing))
                self._look(thing)

    def values(self) -> list[Any]:
        return [space.get(name) for space, name in self._places.values()]

    def _look(self, thing: Any) -> None:
        if isinstance(thing, FunctionType):
            self._function(thing)
        elif isinstance(thing, MethodType):
            self._waiting += [thing.__func__, thing.__self__]
        elif isinstance(thing, partial):
            self._waiting += [thing.func, *thing.args, *thing.keywords.values()]
        elif isinstance(thing, dict | list | tuple):
            self._waiting += islice(thing.values() if isinstance(thing, dict) else thing, MOST_ITEMS)
        elif not isinstance(thing, type | ModuleType):
            self._object(thing)

    def _object(self, thing: Any) -> None:
        """Its class as far as fetching uses it, and what it holds."""
        held = getattr(thing, "__dict__", None)
        if isinstance(held, dict):
            self._waiting += islice(held.values(), MOST_ITEMS)
        classes = [kind for kind in type(thing).__mro__ if _of_the_program(kind.__module__)]
        spaces: list[Mapping[str, Any]] = [vars(kind) for kind in classes]
        wanted, known = set(FETCHING), set[str]()
        while wanted - known:
            name = (wanted - known).pop()
            known.add(name)
            for space in spaces:
                if name in space and (code := self._member(space, name)) is not None:
                    wanted |= names_in(code)

    def _member(self, space: Mapping[str, Any], name: str) -> CodeType | None:
        """Notes a value of a class; of a method the code."""
        value = space[name]
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if isinstance(function, FunctionType):
            self._waiting.append(function)
            return function.__code__
        if not isinstance(value, DESCRIPTORS) and not name.startswith("__"):
            self._places[id(space), name] = space, name
        return None

    def _function(self, function: FunctionType) -> None:
        space = function.__globals__
        if not _of_the_program(space.get("__name__")):
            return
        names = names_in(function.__code__)
        for name in names:
            if name in space:
                self._value(space, name, names)

    def _value(self, space: Mapping[str, Any], name: str, names: set[str]) -> None:
        """Of a global that is named, or an attribute of a module that is."""
        value = space[name]
        if isinstance(value, FunctionType):
            self._waiting.append(value)
        elif isinstance(value, ModuleType):
            if _of_the_program(value.__name__):
                for inner in names.intersection(vars(value)):
                    if not isinstance(vars(value)[inner], ModuleType):
                        self._value(vars(value), inner, names)
        elif isinstance(value, type):
            self._class(value, names)
        else:
            self._places[id(space), name] = space, name
            self._waiting.append(value)

    def _class(self, kind: type, names: set[str]) -> None:
        if not _of_the_program(kind.__module__):
            return
        for name in names.union(("__init__", *FETCHING)).intersection(vars(kind)):
            self._member(vars(kind), name)


def names_in(code: CodeType) -> set[str]:
    """Also of the functions written inside."""
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*map(names_in, inner))


@cache
def _of_the_program(module: Any) -> bool:
    if not isinstance(module, str) or module.partition(".")[0] in ("hotlap", "builtins"):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__":
        return True
    if file is None:
        return module not in sys.builtin_module_names
    return not file.startswith(sysconfig.get_paths()["stdlib"]) and not any(one in file for one in PACKAGES)

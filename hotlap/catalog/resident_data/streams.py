"""The random streams a dataset could draw from: kept as they are, compared, put back.

A dataset that draws numbers while an item is fetched is no candidate for keeping items, and one that is only asked must
leave the user's streams where they were. Besides the global streams of torch, numpy and random these are the generators
found in the dataset, its transforms, the functions they call, and the modules and classes that these name.
"""

from __future__ import annotations

import functools
import pickle
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hotlap.catalog.resident_data.names import names_in

MOST_OBJECTS = 20_000  # looked at in search of private generators
MOST_ITEMS = 200  # of one container
MOST_GENERATORS = 10_000  # of one container that holds some
LEVELS = 2  # of functions called by functions, whose modules and classes are looked into
NESTED = 3  # package.module.Class
MADE_AND_CALLED = ("__init__", "__call__")  # of a class that is named, whatever else is
LIBRARIES = ("torch", "numpy", "builtins", "random")


@dataclass(frozen=True)
class Stream:
    name: str
    state: Any
    read: Callable[[], Any]
    write: Callable[[Any], Any]


RANDOM = "its items are random"
OWN = "its own"  # so begin the names of streams that no worker is seeded with


class Streams:
    """All of them as they are now."""

    def __init__(self, torch: Any, *things: Any) -> None:
        self._kept = [
            Stream(name, read(), read, write)
            for name, read, write in (*_global(torch), *_private(torch, things))
        ]  # fmt: skip
        self._default = torch.default_generator

    def moved(self) -> str | None:
        """The name of a stream that was drawn from since: of one of its own, where there is one."""
        drawn = (one.name for one in self._kept if _bytes(one.read()) != _bytes(one.state))
        return min(drawn, key=lambda name: not name.startswith(OWN), default=None)

    def restore(self) -> None:
        for one in self._kept:
            one.write(one.state)

    def vary(self, seed: int) -> None:
        """Put the global streams somewhere else, and take that for where they are: moved() compares with it."""
        self._default.manual_seed(seed)  # not torch.manual_seed, which would seed devices too
        random.seed(seed)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(seed)

    def here(self) -> Streams:
        """The same streams as they are now."""
        other = object.__new__(Streams)
        other._default = self._default
        other._kept = [Stream(one.name, one.read(), one.read, one.write) for one in self._kept]
        return other


def _bytes(state: Any) -> bytes:
    numbers = getattr(state, "numpy", None)  # a torch state is a tensor of bytes
    return bytes(numbers().tobytes()) if numbers is not None else pickle.dumps(state)


Access = tuple[str, Callable[[], Any], Callable[[Any], Any]]


def _global(torch: Any) -> Iterator[Access]:
    yield "torch's random numbers", torch.get_rng_state, torch.set_rng_state
    yield "random", random.getstate, random.setstate
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        yield "numpy.random", numpy.random.get_state, numpy.random.set_state
    if torch.cuda.is_initialized():
        for number, one in enumerate(torch.cuda.default_generators):  # their state lives on the host: no sync
            yield f"the random numbers of cuda:{number}", one.get_state, one.set_state


def _private(torch: Any, things: Iterable[Any]) -> Iterator[Access]:
    for one in reachable(torch, things):
        if (found := access(torch, one)) is not None:
            yield found


def access(torch: Any, one: Any) -> Access | None:
    """Of a generator; None of anything else."""
    numpy = sys.modules.get("numpy")
    if isinstance(one, torch.Generator):
        return f"{OWN} torch.Generator", one.get_state, one.set_state
    if isinstance(one, random.Random) and not isinstance(one, random.SystemRandom):
        return f"{OWN} random.Random", one.getstate, one.setstate
    if numpy is not None and isinstance(one, numpy.random.RandomState):
        return f"{OWN} numpy RandomState", one.get_state, one.set_state
    if numpy is not None and isinstance(one, numpy.random.Generator):
        bits = one.bit_generator
        return f"{OWN} numpy Generator", functools.partial(_state_of, bits), functools.partial(_set_state, bits)
    return None


def _state_of(bits: Any) -> Any:
    return bits.state


def _set_state(bits: Any, state: Any) -> None:
    bits.state = state


def asks_which_worker(torch: Any, *things: Any) -> bool:
    """Whether code of a dataset or a collate function looks at the worker it runs in: its number, its seed."""
    asking = torch.utils.data.get_worker_info
    return any(
        one is asking
        or (
            isinstance(one, types.FunctionType)
            and not _of_library(one.__globals__.get("__name__"))
            and asking.__name__ in names_in(one.__code__)
        )
        for one in reachable(torch, things)
    )


def reachable(torch: Any, things: Iterable[Any]) -> Iterator[Any]:
    """Objects held by these things or used by their code, not into libraries or large containers."""
    waiting = [(one, 0) for one in things]
    seen: set[int] = set()
    while waiting and len(seen) < MOST_OBJECTS:
        one, level = waiting.pop()
        if id(one) in seen or isinstance(one, str | bytes | int | float | types.ModuleType):
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, types.FunctionType):
            waiting.extend((held, level + 1) for held in _held_by_function(one, level))
        else:
            waiting.extend((held, level) for held in _held_by(torch, one))


def _held_by(torch: Any, one: Any) -> list[Any]:
    if isinstance(one, dict):
        return _some(torch, one.values())
    if isinstance(one, list | tuple | set | frozenset):
        return _some(torch, one)
    if isinstance(one, types.MethodType):
        return [one.__self__, one.__func__]
    if isinstance(one, functools.partial):
        return [one.func, *one.args, *one.keywords.values()]
    if isinstance(one, type) or _of_library(type(one).__module__):
        return list(getattr(one, "__dict__", {}).values()) if not isinstance(one, type) else []
    methods = [
        _plain(value)
        for base in type(one).__mro__
        if not _of_library(base.__module__)
        for value in vars(base).values()
    ]  # fmt: skip
    return [*getattr(one, "__dict__", {}).values(), *methods]


def _some(torch: Any, items: Iterable[Any]) -> list[Any]:
    some = list(islice(items, MOST_ITEMS))
    if len(some) < MOST_ITEMS or all(access(torch, one) is None for one in some):
        return some
    return list(islice(items, MOST_GENERATORS))


def _held_by_function(function: types.FunctionType, level: int) -> list[Any]:
    held: list[Any] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    if _of_library(function.__globals__.get("__name__")):
        return held
    names = names_in(function.__code__)
    used = [function.__globals__[name] for name in names if name in function.__globals__]
    parts = [part for owner in (*held, *used) for part in _used_of(owner, names)] if level < LEVELS else []
    return [*held, *used, *parts]


def _used_of(owner: Any, names: set[str], nested: int = NESTED) -> list[Any]:
    """What code that has these names can use of a module or a class."""
    if isinstance(owner, types.ModuleType):
        wanted, home = names, owner.__name__
    elif isinstance(owner, type):
        wanted, home = names.union(MADE_AND_CALLED), owner.__module__
    else:
        return []
    if _of_library(home) or not nested:
        return []
    found = [_plain(vars(owner)[name]) for name in wanted if name in vars(owner)]
    return [*found, *(part for one in found for part in _used_of(one, names, nested - 1))]


def _plain(value: Any) -> Any:
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value


def _of_library(module: str | None) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in LIBRARIES

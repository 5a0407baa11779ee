"""The random streams a dataset could draw from: kept as they are, compared, put back.

A dataset that draws numbers while an item is fetched is no candidate for keeping items, and one that is only asked must
leave the user's streams where they were. Besides the global streams of torch, numpy and random these are the generators
found in the dataset, its transforms, and the functions they call.
"""

from __future__ import annotations

import functools
import pickle
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

MOST_OBJECTS = 20_000  # looked at in search of private generators
MOST_ITEMS = 200  # of one container
LIBRARIES = ("torch", "numpy", "builtins", "random")


@dataclass(frozen=True)
class Stream:
    name: str
    state: Any
    read: Callable[[], Any]
    write: Callable[[Any], Any]


class Streams:
    """All of them as they are now."""

    def __init__(self, torch: Any, *things: Any) -> None:
        self._kept = [
            Stream(name, read(), read, write)
            for name, read, write in (*_global(torch), *_private(torch, things))
        ]  # fmt: skip
        self._default = torch.default_generator

    def moved(self) -> str | None:
        """The name of a stream that was drawn from since."""
        return next((one.name for one in self._kept if _bytes(one.read()) != _bytes(one.state)), None)

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
    numpy = sys.modules.get("numpy")
    for one in _reachable(things):
        if isinstance(one, torch.Generator):
            yield "its own torch.Generator", one.get_state, one.set_state
        elif isinstance(one, random.Random) and not isinstance(one, random.SystemRandom):
            yield "its own random.Random", one.getstate, one.setstate
        elif numpy is not None and isinstance(one, numpy.random.RandomState):
            yield "its own numpy RandomState", one.get_state, one.set_state
        elif numpy is not None and isinstance(one, numpy.random.Generator):
            bits = one.bit_generator
            yield "its own numpy Generator", functools.partial(_state_of, bits), functools.partial(_set_state, bits)


def _state_of(bits: Any) -> Any:
    return bits.state


def _set_state(bits: Any, state: Any) -> None:
    bits.state = state


def _reachable(things: Iterable[Any]) -> Iterator[Any]:
    """Objects held by these things, not into libraries, modules or large containers."""
    waiting = list(things)
    seen: set[int] = set()
    while waiting and len(seen) < MOST_OBJECTS:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, str | bytes | int | float | types.ModuleType):
            continue
        seen.add(id(one))
        yield one
        waiting.extend(_held_by(one))


def _held_by(one: Any) -> list[Any]:
    if isinstance(one, dict):
        return list(one.values())[:MOST_ITEMS]
    if isinstance(one, list | tuple | set | frozenset):
        return list(one)[:MOST_ITEMS]
    if isinstance(one, types.FunctionType):
        return _held_by_function(one)
    if isinstance(one, types.MethodType):
        return [one.__self__, one.__func__]
    if isinstance(one, functools.partial):
        return [one.func, *one.args, *one.keywords.values()]
    if isinstance(one, type) or type(one).__module__.split(".")[0] in LIBRARIES:
        return list(getattr(one, "__dict__", {}).values()) if not isinstance(one, type) else []
    methods = [
        value.__func__ if isinstance(value, staticmethod | classmethod) else value
        for base in type(one).__mro__
        if base.__module__.split(".")[0] not in LIBRARIES
        for value in vars(base).values()
    ]
    return [*getattr(one, "__dict__", {}).values(), *methods]


def _held_by_function(function: types.FunctionType) -> list[Any]:
    held = [function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__]
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    return [*held, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]

"""What a model's forward reads besides its inputs and weights: attributes, settings and globals of its modules.

It is found by walking the modules and the bytecode of their forwards and of what those call; nothing is run. Entries
that do not run the forward each time, or run it twice, need it to know when the forward would take another path.
"""

from __future__ import annotations

import builtins
import dis
import logging
import random
import sys
import time
import warnings
from collections.abc import Iterator
from operator import is_
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from hotlap.runtime.executed_stores import Store
from hotlap.runtime.recomputed_weights import recomputed_names

DEEPEST = 3  # levels of nested settings
MOST = 4000  # places; checking more would take longer than it saves
PLAIN = (bool, int, float, complex, str, bytes, type(None))
OF_MODULES = frozenset(
    "_parameters _buffers _modules training _non_persistent_buffers_set _backward_pre_hooks _backward_hooks "
    "_is_full_backward_hook _forward_hooks _forward_hooks_with_kwargs _forward_hooks_always_called _forward_pre_hooks "
    "_forward_pre_hooks_with_kwargs _state_dict_hooks _state_dict_pre_hooks _load_state_dict_pre_hooks "
    "_load_state_dict_post_hooks _flat_weights _flat_weight_refs forward".split()
)
REACHING = {"input", "open", "exec", "eval"}
WRITING = {"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"}
INSTALLED = ("site-packages", "dist-packages", str(Path(dis.__file__).parent))  # the last is Python's own


class Readings:
    def __init__(self, torch: Any, root: Any) -> None:
        self._torch = torch
        self._names: set[str] = set()  # all names in the code found so far: no other attribute is read
        known = -1
        while known < len(self._names):
            known = len(self._names)
            self._walk(root)

    def _walk(self, root: Any) -> None:
        self._holders: list[dict[Any, Any]] = []
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._classes: list[tuple[type, str, Any]] = []
        self._sized: list[Any] = []
        self._sizes: list[int] = []
        self._names_in: list[frozenset[Any]] = []  # of the containers in `_sized`
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._seen: set[int] = set()
        self._alive: list[Any] = []  # so that no id in `_seen` is reused
        self.generators: list[Any] = []  # random streams that the model has
        self.outside: str | None = None  # the reason, if it reads or writes what cannot be watched, such as the clock
        self.leaves: str | None = None  # the reason, if it may print, log, or set attributes and globals
        self.stores: list[Store] = []  # those of anything but its modules
        for module in root.modules():
            self._module(module, is_root=module is root)
        self._root, self._root_size = vars(root), _own_size(vars(root))

    @property
    def why_not(self) -> str | None:
        return self.why_not_watched or self.leaves

    @property
    def why_not_watched(self) -> str | None:
        """Return why not, for who runs forward once and sees what it prints, logs and sets: whether it does depends on
        what is read here.
        """
        if self.outside is not None:
            return self.outside
        return "forward reads more than can be watched" if len(self._keys) > MOST else None

    def hold(self) -> bool:
        """Return whether nothing has changed. Called at each step, so without loops in Python."""
        return (
            (all(map(is_, map(dict.get, self._holders, self._keys), self._values)) or self._are_equal())
            and all([base.__dict__.get(name) is value for base, name, value in self._classes])  # noqa: C419 faster so
            and list(map(len, self._sized)) == self._sizes
            and _own_size(self._root) == self._root_size
            and all([len(live) == len(was) and all(map(is_, live, was)) for live, was in self._lists])  # noqa: C419
        )

    def _are_equal(self) -> bool:
        """Return whether values are equal where they are not identical: a recomputed number is another object."""
        for n, (holder, key, value) in enumerate(zip(self._holders, self._keys, self._values, strict=True)):
            now = holder.get(key)
            if now is not value:
                if type(now) is not type(value) or not isinstance(now, PLAIN) or now != value:
                    return False
                self._values[n] = now
        return True

    def changed(self) -> str:
        """Return the name of something that has changed."""
        found = (
            str(key)
            for holder, key, value in zip(self._holders, self._keys, self._values, strict=True)
            if holder.get(key) is not value
        )
        return next(found, "a list or dictionary")

    def put_back(self) -> None:
        """Restore everything after a forward that the program did not call."""
        for held, names in zip(self._sized, self._names_in, strict=True):
            for name in held.keys() - names:
                del held[name]
        for holder, key, value in zip(self._holders, self._keys, self._values, strict=True):
            if holder.get(key) is not value:
                holder[key] = value
        for live, was in self._lists:
            live[:] = was

    # The walk

    def _module(self, module: Any, is_root: bool) -> None:
        held, kind = vars(module), type(module)
        if not is_root:
            self._size(held)
            if "forward" in held:
                self._place(held, "forward", 0)
        forward = held.get("forward", kind.forward)
        own = not self._is_torch(getattr(forward, "__module__", None))
        if own:
            self._function(getattr(forward, "__func__", forward), kind)
        recomputed = recomputed_names(module)
        for name in list(held):
            if name not in OF_MODULES and name not in recomputed and (name in self._names or not own):
                self._place(held, name, 0)

    def _place(self, holder: dict[Any, Any], key: Any, depth: int) -> None:
        if len(self._keys) > MOST:
            return
        value = holder[key]
        if not isinstance(value, MethodType):  # which would keep its object alive
            self._holders.append(holder)
            self._keys.append(key)
            self._values.append(value)
        self._value(value, depth)

    def _value(self, value: Any, depth: int) -> None:
        if isinstance(value, (*PLAIN, type, ModuleType, logging.Logger)) or id(value) in self._seen:
            return
        if isinstance(value, self._torch.Tensor | self._torch.nn.Module):
            return  # a tensor is read in place; modules are walked separately
        if not isinstance(value, MethodType):
            self._mark(value)
        if is_generator(self._torch, value) or is_generator(self._torch, getattr(value, "__self__", None)):
            self.generators.append(value)
        elif isinstance(value, FunctionType | MethodType):
            self._callable(value)
        elif depth < DEEPEST:
            self._inside(value, depth + 1)

    def _size(self, value: Any) -> None:
        """Record how many names it holds: a new attribute of an object can hide one of its class."""
        self._sized.append(value)
        self._sizes.append(len(value))
        self._names_in.append(frozenset(value))

    def _inside(self, value: Any, depth: int) -> None:
        if isinstance(value, dict):
            self._size(value)
            for key in list(value):
                self._place(value, key, depth)
        elif isinstance(value, list):
            self._lists.append((value, list(value)))
            for element in value:
                self._value(element, depth)
        elif isinstance(value, tuple | set | frozenset):
            for element in value:
                self._value(element, depth)
        elif not self._is_torch(type(value).__module__) and isinstance(held := getattr(value, "__dict__", None), dict):
            self._size(held)
            for key in self._names & held.keys():
                self._place(held, key, depth)

    def _callable(self, value: Any) -> None:
        function = getattr(value, "__func__", value)
        if not self._is_torch(function.__module__):
            self._function(function, type(getattr(value, "__self__", None)))

    def _function(self, function: Any, owner: type) -> None:
        """Walk a function; `owner` is the class whose methods it can call on itself."""
        function = getattr(function, "__wrapped__", function)
        if not isinstance(function, FunctionType) or id(function.__code__) in self._seen:
            return
        self._mark(function.__code__)
        self._writes(function, owner)
        names = set(names_of(function.__code__))
        self._names |= names
        for name in names:
            if name in function.__globals__:
                self._global(function, name, names)
            elif name in REACHING and hasattr(builtins, name):
                self.outside = self.outside or f"{function.__qualname__} uses {name}"
            elif name == "print" and not _is_installed(function):
                self.leaves = self.leaves or f"{function.__qualname__} prints"
            self._method(owner, name)
        for cell in function.__closure__ or ():
            try:
                self._value(cell.cell_contents, 0)
            except ValueError:  # not filled yet
                continue
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._value(default, 0)

    def _global(self, function: FunctionType, name: str, names: set[str]) -> None:
        value = function.__globals__[name]
        if isinstance(value, ModuleType):
            self._of_module(function, value, names)
        elif isinstance(value, type):
            for member in names | {"__init__", "__call__", "forward"}:
                self._method(value, member)
        elif isinstance(value, logging.Logger):
            self._logs(function)
        elif value is warnings.warn:
            self._warns(function)
        elif any(value is clock for clock in (time.time, time.perf_counter, time.monotonic)):
            self.outside = self.outside or f"{function.__qualname__} reads the clock"
        elif not self._is_torch(getattr(value, "__module__", None)) or not callable(value):
            self._place(function.__globals__, name, 0)

    def _of_module(self, function: FunctionType, module: ModuleType, names: set[str]) -> None:
        if module is time or module.__name__ == "datetime":
            self.outside = self.outside or f"{function.__qualname__} reads the clock"
        elif module is logging:
            self._logs(function)
        elif module is warnings:
            self._warns(function)
        elif module.__name__.partition(".")[0] not in ("torch", "numpy", "math", "random", *sys.stdlib_module_names):
            for name in names & vars(module).keys():
                if not isinstance(vars(module)[name], ModuleType | type):
                    self._place(vars(module), name, 0)

    def _writes(self, function: FunctionType, owner: type) -> None:
        """Note what a function sets; not in installed packages, whose setting branches are rarely taken in training."""
        if _is_installed(function):
            return
        for store in stores_of(function.__code__):
            if store.is_own and function.__name__ == "__init__":
                continue  # of an object that is only made now
            self.leaves = self.leaves or f"{function.__qualname__} sets {store.name}"
            if not (store.is_own and issubclass(owner, self._torch.nn.Module)):
                self.stores.append(store)

    def _logs(self, function: FunctionType) -> None:
        if not _is_installed(function):
            self.leaves = self.leaves or f"{function.__qualname__} writes a log"

    def _warns(self, function: FunctionType) -> None:
        """Note a function that warns; not for installed packages, whose warnings do not vary between steps."""
        if not _is_installed(function):
            self.outside = self.outside or f"{function.__qualname__} warns"

    def _method(self, owner: type, name: str) -> None:
        for number, base in enumerate(owner.__mro__):
            if name in vars(base):
                value = vars(base)[name]
                made = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if not self._is_torch(getattr(made, "__module__", None) or base.__module__):
                    self._classes += [(nearer, name, None) for nearer in owner.__mro__[:number]]
                    self._classes.append((base, name, value))
                    if isinstance(made, FunctionType):
                        self._function(made, owner)
                    elif not isinstance(made, type):
                        self._value(made, 0)
                return

    def _mark(self, value: Any) -> None:
        self._seen.add(id(value))
        self._alive.append(value)

    @staticmethod
    def _is_torch(name: str | None) -> bool:
        return (name or "").partition(".")[0] == "torch"


def stores_of(code: CodeType, is_inner: bool = False) -> Iterator[Store]:
    """Yield the attributes and globals set by a function or by one defined in it."""
    first = code.co_varnames[0] if code.co_argcount and not is_inner else None
    loaded: Any = None  # the name of the local variable on top of the stack
    lines, line = dict(dis.findlinestarts(code)), code.co_firstlineno
    for instruction in dis.get_instructions(code):
        name, line = instruction.opname, lines.get(instruction.offset) or line
        if name in WRITING:
            of = loaded if name == "STORE_ATTR" else None
            yield Store(str(instruction.argval), of, of is not None and of == first, code, line)
        if name not in ("CACHE", "EXTENDED_ARG"):
            loaded = instruction.argval if "LOAD_FAST" in name else None
            loaded = loaded[-1] if isinstance(loaded, tuple) else loaded  # two are loaded at once
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from stores_of(constant, is_inner=True)


def _is_installed(function: FunctionType) -> bool:
    return any(folder in function.__code__.co_filename for folder in INSTALLED)


def _own_size(held: dict[str, Any]) -> int:
    """Return the number of names, without a forward that we or another entry put there for this call."""
    return len(held) - ("forward" in held)


def names_of(code: CodeType) -> Iterator[str]:
    """Yield all names of globals, attributes and methods in a function and in those defined in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_of(constant)


def is_generator(torch: Any, value: Any) -> bool:
    """Return whether the value is a random stream other than the global ones of the process."""
    numpy = sys.modules.get("numpy")
    if value is random._inst or (numpy is not None and value is numpy.random.mtrand._rand):
        return False
    kinds = (numpy.random.RandomState, numpy.random.Generator, numpy.random.BitGenerator) if numpy else ()
    return isinstance(value, (torch.Generator, random.Random, *kinds))

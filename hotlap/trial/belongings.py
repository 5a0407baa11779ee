"""Walks from the program's variables to its own state: generators, schedulers, tensors and arrays, by their paths.

The walk starts at variables of the program's modules and of the functions that are running. It enters containers, and
objects whose class is neither the standard library's, a framework's nor ours. What a step makes anew is left out: a
container, a tensor or an array counts only if its variable still held the same one after the second step. Limits are
counts rather than seconds, so that both arms are cut at the same place.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

from hotlap.loading.generators import access
from hotlap.observe.frames import is_program

MOST_OBJECTS = 10_000  # visited in all
MOST_ENTRIES = 1_024  # of one container
LEAVES = (type, ModuleType, str, bytes, int, float, complex, NoneType)
SCHEDULER_MODULES = ("torch.optim.lr_scheduler", "torch.optim.swa_utils")
OF_LOADERS = ("generator", "sampler", "batch_sampler")

Named = tuple[str, Any]


class Belongings:
    """What one walk found. Tensors and arrays of one container share a name."""

    def __init__(self, torch: Any, known: Iterable[int] = ()) -> None:
        """Begin an empty walk; `known` holds the ids of tensors that are compared elsewhere."""
        self._torch, self._known = torch, set(known)
        self._seen: set[int] = set()
        self._ahead: set[int] = set()  # generators from which a loader may draw ahead
        self._generators: list[Named] = []
        self.schedulers: list[Named] = []
        self.tensors: dict[str, list[Any]] = {}
        self.arrays: dict[str, list[Any]] = {}
        self.cut: list[str] = []

    def walk(self, roots: Iterable[Named]) -> Belongings:
        waiting = deque((name, name, value) for name, value in roots if _is_of_interest(value))
        visited = 0
        while waiting:
            name, group, value = waiting.popleft()
            if id(value) in self._seen:
                continue
            visited += 1
            if visited > MOST_OBJECTS:
                self.cut.append(f"the program's objects beyond the first {MOST_OBJECTS:,}")
                break
            self._seen.add(id(value))
            with suppress(Exception):  # an object of the program's own may raise anything
                waiting.extend(self._visit(name, group, value))
        return self

    @property
    def generators(self) -> list[Named]:
        return [(name, value) for name, value in self._generators if id(value) not in self._ahead]

    def _visit(self, name: str, group: str, value: Any) -> Iterable[tuple[str, str, Any]]:
        torch = self._torch
        kind: Any = type(value)
        if issubclass(kind, torch.Tensor):
            if id(value) not in self._known and value.grad_fn is None:
                self.tensors.setdefault(group, []).append(value)
            return ()
        if is_array(kind):
            self.arrays.setdefault(group, []).append(value)
            return ()
        if is_generator(torch, value):
            self._generators.append((name, value))
            return ()
        if is_scheduler(kind):
            self.schedulers.append((name, value))
        if _may_draw_ahead(torch, value):
            self._ahead |= {id(part) for part in vars(value).values() if is_generator(torch, part)}
        return self._parts(name, value)

    def _parts(self, name: str, value: Any) -> Iterable[tuple[str, str, Any]]:
        torch = self._torch
        kind: Any = type(value)
        if issubclass(kind, dict):
            return self._entries(name, value.items())
        if issubclass(kind, list | tuple | deque):
            return self._entries(name, enumerate(value))
        if issubclass(kind, torch.optim.Optimizer):
            return ()
        if issubclass(kind, torch.nn.Module):
            return _attributes(name, _of_module(torch, value))
        if issubclass(kind, torch.utils.data.DataLoader):
            return _attributes(name, [(part, vars(value).get(part)) for part in OF_LOADERS])
        if is_scheduler(kind) or issubclass(kind, torch.utils.data.Dataset | torch.utils.data.Sampler):
            return _attributes(name, _fields(value))
        if issubclass(kind, functools.partial):
            return _attributes(name, [("func", value.func), ("args", value.args), ("keywords", value.keywords)])
        if kind is MethodType:
            return [(name, name, value.__self__)] if _is_of_interest(value.__self__) else ()
        if kind is FunctionType:
            return _attributes(name, _closure(value)) if is_program(value.__code__.co_filename) else ()
        return _attributes(name, _fields(value)) if is_of_program(kind) else ()

    def _entries(self, name: str, parts: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, str, Any]]:
        for place, (key, part) in enumerate(parts):
            if place == MOST_ENTRIES:
                self.cut.append(f"entries of {name} beyond the first {MOST_ENTRIES:,}")
                return
            if _is_of_interest(part):
                yield f"{name}[{_key(key, place)}]", name, part


class Roots:
    """The variables from which to walk; decides after the second step which containers and tensors last."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._first: dict[str, Callable[[], Any]] = {}

    def training_begins(self) -> None:
        self._first = {name: self._reference(value) for name, value in variables() if self._is_entered(value)}

    def second_step_over(self) -> None:
        """Keep what its variable still holds, even if the function that has the variable returns before the end."""
        now = dict(variables())
        self._first = {name: held for name, held in self._first.items() if held() is now.get(name, self)}

    def all(self) -> list[Named]:
        held = [(name, value) for name, reference in self._first.items() if (value := reference()) is not None]
        return held + [(name, value) for name, value in variables() if not self._is_momentary(value)]

    def _reference(self, value: Any) -> Callable[[], Any]:
        """Refer to a value without keeping it if it may be large, or belong to one step."""
        if self._is_momentary(value):
            with suppress(TypeError):
                return weakref.ref(value)
        if type(value) in (dict, list, tuple) and self._holds_a_graph(value):
            return lambda: None
        return lambda: value

    def _is_entered(self, value: Any) -> bool:
        torch = self._torch
        kind: Any = type(value)
        with suppress(Exception):  # a class with a class of its own may raise anything
            return (
                self._is_momentary(value)
                or is_of_program(kind)
                or is_scheduler(kind)
                or is_generator(torch, value)
                or issubclass(kind, FunctionType | MethodType | torch.nn.Module | torch.utils.data.Dataset)
            )
        return False

    def _is_momentary(self, value: Any) -> bool:
        kind: Any = type(value)
        return issubclass(kind, dict | list | tuple | deque | self._torch.Tensor) or is_array(kind)

    def _holds_a_graph(self, value: Any) -> bool:
        parts = value.values() if isinstance(value, dict) else value
        return any(
            issubclass(type(part), self._torch.Tensor) and part.grad_fn is not None
            for part in list(parts)[:MOST_ENTRIES]
        )


def variables() -> Iterator[Named]:
    """Yield the variables of the program's modules, then those of its running functions, outermost first."""
    modules = [(name, module) for name, module in list(sys.modules.items()) if _is_module_of_program(name, module)]
    for name, module in sorted(modules, key=lambda pair: pair[0]):
        prefix = "" if name == "__main__" else f"{name}."
        for variable, value in list(vars(module).items()):
            if not variable.startswith("__"):
                yield prefix + variable, value
    for frame in reversed(_frames(sys._getframe())):
        if not _may_keep_its_variables(frame.f_code):
            yield from _locals(frame)


def closed_functions() -> list[str]:
    """Return the running functions whose variables cannot be read without a trace."""
    return [frame.f_code.co_name for frame in _frames(sys._getframe()) if _may_keep_its_variables(frame.f_code)]


@functools.cache
def _may_keep_its_variables(code: CodeType) -> bool:
    """Whether the function may hold the dict that `f_locals` updates, as `settings = locals()` does before 3.13."""
    if sys.version_info >= (3, 13) or "locals" not in code.co_names:
        return False
    return any(part.opname == "LOAD_GLOBAL" and part.argval == "locals" for part in dis.get_instructions(code))


def _frames(frame: FrameType | None) -> list[FrameType]:
    """Return the program's functions, innermost first; those of installed packages if there are no others."""
    found: dict[bool, list[FrameType]] = {True: [], False: []}
    while frame is not None:
        code = frame.f_code
        if code.co_flags & inspect.CO_OPTIMIZED and is_program(code.co_filename, installed=True):
            found[is_program(code.co_filename)].append(frame)
        frame = frame.f_back
    return found[True] or found[False]


def _locals(frame: FrameType) -> list[Named]:
    found = frame.f_locals
    named = [(f"{frame.f_code.co_name}: {name}", value) for name, value in found.items()]
    if sys.version_info < (3, 13):
        found.clear()  # a copy that the frame keeps, which would hold what the program lets go
    return named


def _is_module_of_program(name: str, module: Any) -> bool:
    if not issubclass(type(module), ModuleType):
        return False
    file = vars(module).get("__file__")
    return is_program(file) if isinstance(file, str) else name == "__main__"


@functools.cache
def is_of_program(kind: Any) -> bool:
    """Whether a class is defined by the program, or by a package outside the known frameworks."""
    module = sys.modules.get(kind.__module__)
    if module is None or kind.__module__ == "builtins":
        return False
    file = vars(module).get("__file__")
    return is_program(file, installed=True) if isinstance(file, str) else kind.__module__ == "__main__"


@functools.cache
def is_scheduler(kind: Any) -> bool:
    return any(
        (base.__module__ in SCHEDULER_MODULES and base.__name__ != "AveragedModel") or "Scheduler" in base.__name__
        for base in kind.__mro__
    )


def is_array(kind: type) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(kind, numpy.ndarray)


def _is_of_interest(value: Any) -> bool:
    return not issubclass(type(value), LEAVES)


@functools.cache
def _may_be_generator(kind: Any) -> bool:
    return any(base.__name__ in ("Generator", "RandomState", "Random") for base in kind.__mro__)


def is_generator(torch: Any, value: Any) -> bool:
    kind: Any = type(value)
    return _may_be_generator(kind) and access(torch, value) is not None


def _may_draw_ahead(torch: Any, value: Any) -> bool:
    """Whether a loader that reads ahead draws from the object's generators earlier than the program would."""
    if not issubclass(type(value), torch.utils.data.Sampler):
        return False
    kind: Any = type(value)
    return is_of_program(kind) or getattr(value, "replacement", False) is True


def _key(key: Any, place: int) -> str:
    return repr(key) if isinstance(key, str | int | float | bool) else str(place)


def _attributes(name: str, parts: Iterable[Named]) -> Iterator[tuple[str, str, Any]]:
    for attribute, part in parts:
        if _is_of_interest(part):
            yield f"{name}.{attribute}", f"{name}.{attribute}", part


def _fields(value: Any) -> list[Named]:
    fields = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            with suppress(AttributeError):
                if name not in ("__dict__", "__weakref__"):
                    fields.setdefault(name, object.__getattribute__(value, name))
    return list(fields.items())


def _of_module(torch: Any, module: Any) -> list[Named]:
    """Return the children of a module, and what the program's own class holds besides weights, buffers and hooks."""
    fields = vars(module)
    children = list(fields.get("_modules", {}).items())
    kind: Any = type(module)
    if not is_of_program(kind):
        return children
    return children + [(name, part) for name, part in fields.items() if name not in _kept_by_torch(torch)]


@functools.cache
def _kept_by_torch(torch: Any) -> frozenset[str]:
    return frozenset(vars(torch.nn.Module()))


def _closure(function: FunctionType) -> Iterator[Named]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # not assigned yet
            yield name, cell.cell_contents

"""Questions about the list of pure operations: whether a function is on it, what it writes into, and why not."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from io import BytesIO, TextIOWrapper
from pathlib import PurePath
from types import BuiltinFunctionType, ClassMethodDescriptorType, FunctionType, MethodDescriptorType
from typing import Any

from hotlap.loading.purity.genuine import genuine, resolved
from hotlap.loading.purity.plain import ARRAYS, ATOMS, CONTAINERS, OTHER_ATOMS, TABLES
from hotlap.loading.purity.pure_operations import (
    ALIASING_MODULES,
    BY_NAME,
    DRAWING,
    IN_PLACE_FLAGS,
    METHOD_OUT_AT,
    METHODS,
    OUT_AT,
    OUTPUTS,
    UNHEARD,
    WHOLE_MODULES,
    WHY,
    Gives,
)
from hotlap.loading.purity.values import Value

_METHOD_KINDS = (FunctionType, BuiltinFunctionType, MethodDescriptorType, ClassMethodDescriptorType)
_METHOD_KINDS += (type(int.__add__), classmethod, staticmethod)  # type: ignore[assignment]


def is_method(name: str) -> bool:
    """Return whether some plain value has a method of this name that is not listed as pure."""
    return name not in METHODS and name in _methods(len(sys.modules))


@lru_cache(maxsize=1)
def _methods(modules: int) -> frozenset[str]:
    named = [resolved(name) for name in (*ARRAYS, *TABLES, *OTHER_ATOMS, "PIL.Image.Image", "numpy.generic")]
    kinds = [*ATOMS, *CONTAINERS, PurePath, BytesIO, TextIOWrapper, *(kind for kind in named if isinstance(kind, type))]
    return frozenset(
        name
        for kind in kinds
        for base in kind.__mro__
        for name, member in vars(base).items()
        if isinstance(member, _METHOD_KINDS) and name not in ("__class__", "__dict__")
    )


_tables: dict[int, tuple[Any, Gives]] = {}
_filled_for: set[str] = set()
_modules_at = -1


def rule_of(function: Any) -> Gives | None:
    """Return what a library function gives if it is on the list, else None."""
    global _modules_at
    if len(sys.modules) != _modules_at:
        _fill()
        _modules_at = len(sys.modules)
    found = _tables.get(id(function))
    if found is not None and found[0] is function:
        return found[1]
    return _by_module(function)


def _fill() -> None:
    for gives, names in BY_NAME.items():
        for name in names:
            if name not in _filled_for and name.partition(".")[0] in sys.modules:
                found = resolved(name)
                if found is not None and genuine(found):
                    _tables[id(found)] = found, gives
                    _filled_for.add(name)


def _by_module(function: Any) -> Gives | None:
    numbers = sys.modules.get("numpy")
    if numbers is not None and isinstance(function, numbers.ufunc):
        return Gives.NEW if _is_ufunc_of_a_library(function) else None
    module, name = getattr(function, "__module__", None), getattr(function, "__name__", "")
    if not isinstance(module, str) or not genuine(function):
        return None
    for whole, but in WHOLE_MODULES.items():
        inside = module == whole or module.startswith(f"{whole}.") or ("." in whole and module.startswith(f"{whole}_"))
        if inside and name not in but:
            if module.startswith(ALIASING_MODULES):
                return Gives.ALIAS
            return Gives.ORDERED if module.startswith("torch") else Gives.NEW
    return None


def opens_unheard(function: Any) -> bool:
    """Return whether compiled code opens the file, without an audit event of Python's that would tell its name."""
    return any(resolved(name) is function for name in UNHEARD)


def is_ordered(function: Any) -> bool:
    """Return whether a function that may return a view otherwise sums in an order that may vary."""
    module = str(getattr(function, "__module__", ""))
    return module.startswith("torchvision.") or (module == "torch.functional" and function.__name__ == "einsum")


def _is_ufunc_of_a_library(function: Any) -> bool:
    spaces = [sys.modules.get(name) for name in ("numpy", "scipy.special")]
    return any(getattr(space, function.__name__, None) is function for space in spaces)


def written_by(function: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> list[Value]:
    """Return the arguments that a listed function writes into."""
    given = dict(zip(_parameters(function), args, strict=False)) | dict(kwargs)
    if any(argument.spread for argument in args) and not given.keys().isdisjoint(OUTPUTS | IN_PLACE_FLAGS):
        return list(args)
    found = [value for name, value in given.items() if name in OUTPUTS]
    flags = [value for name, value in given.items() if name in IN_PLACE_FLAGS]
    if getattr(function, "__name__", "") == "nan_to_num" and given.get("copy", _COPIED).known is not True:
        flags.append(_COPIED)
    if any(value.known is not None and value.known is not False for value in flags):
        found += args[:1]
    return [value for value in found if value.known is not None and not value.nothing]


_COPIED = Value(plain=True, known=True)


def written_by_method(name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> list[Value]:
    at = METHOD_OUT_AT.get(name)
    by_place = [] if at is None else list(args[at : at + 1])
    if at is not None and any(argument.spread for argument in args):
        by_place = list(args)
    by_name = [kwargs["out"]] if "out" in kwargs else []
    return [value for value in (*by_place, *by_name) if value.known is None or not value.nothing]


@lru_cache(maxsize=512)
def _parameters(function: Any) -> tuple[str, ...]:
    """Return the names of a function's parameters, as far as they are known."""
    numbers = sys.modules.get("numpy")
    if numbers is not None and isinstance(function, numbers.ufunc):
        return (*(f"x{at}" for at in range(function.nin)), *["out"] * function.nout)
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        at = OUT_AT.get(getattr(function, "__name__", ""))
        return () if at is None else (*(f"x{number}" for number in range(at)), "out")


def why_not(function: Any) -> str:
    """Return the known reason why a function is impure, or that it is not known to be pure."""
    return known_reason(function) or f"calls {_full_name(function)}, which is not known to be pure"


def known_reason(function: Any) -> str | None:
    """Return the reason why a function is known to be impure, or None."""
    owner = getattr(function, "__self__", None)
    kind = type(owner).__name__
    if owner is not None and ("Generator" in kind or kind in ("Random", "RandomState", "SystemRandom")):
        return "draws from a generator of its own" if not _is_global(owner) else "draws random numbers"
    name, module = _name(function), getattr(function, "__module__", None) or ""
    if "cython" in type(function).__name__ and _draws(name):
        return "draws random numbers"
    if function is builtins.print:
        return "prints"
    if function is builtins.input:
        return "waits for input"
    if name.rpartition(".")[2] in DRAWING and module.partition(".")[0] in ("torch", "numpy"):
        return "draws random numbers"
    for start, why in WHY.items():
        if module == start or module.startswith(f"{start}."):
            return why
    return None


def _full_name(function: Any) -> str:
    module = getattr(function, "__module__", None) or ""
    return f"{module}.{_name(function)}" if module not in ("", "builtins", "__main__") else _name(function)


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or type(function).__name__


def _draws(name: str) -> bool:
    return name.startswith(("RandomState.", "Generator.", "BitGenerator."))


def draws_globally(function: Any) -> bool:
    """Return whether it draws from a stream that torch seeds in a worker: torch's, NumPy's global one or `random`'s."""
    owner = getattr(function, "__self__", None)
    if owner is not None and _is_global(owner):
        return getattr(function, "__name__", "") not in ("seed", "setstate", "set_state", "getstate", "get_state")
    name, module = getattr(function, "__name__", ""), getattr(function, "__module__", None) or ""
    return name in DRAWING and module.partition(".")[0] == "torch" and genuine(function)


def _is_global(owner: Any) -> bool:
    import random

    numbers = sys.modules.get("numpy")
    return owner is random._inst or (numbers is not None and owner is getattr(numbers.random.mtrand, "_rand", None))

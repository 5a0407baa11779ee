"""Types of libraries whose methods a program can replace, and whether it has."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

from hotlap.loading.purity.genuine import genuine, genuine_of, resolved
from hotlap.loading.purity.objects import of_the_program, without_our_layers
from hotlap.loading.purity.plain import TABLES

HEAP_TYPE = 1 << 9  # of a class that Python code can write into
ARITHMETIC = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()
OTHER_OPERATORS = "getitem setitem neg pos abs invert eq ne lt le gt ge bool int float index len".split()
OPERATORS = tuple(
    f"__{name}__"
    for name in [*(side + operation for operation in ARITHMETIC for side in ("", "r", "i")), *OTHER_OPERATORS]
)
# What operators, iteration and conversion to an array run, though no method is named.
UNNAMED = (*OPERATORS, *"__iter__ __contains__ __array__ __array_interface__ __fspath__".split())


def library_types() -> tuple[type, ...]:
    """Return the imported types of plain values that Python code can write into."""
    return _library_types(len(sys.modules))


@lru_cache(maxsize=1)
def _library_types(modules: int) -> tuple[type, ...]:
    named = ["PIL.Image.Image", "torch.Tensor", "numpy.memmap", *sorted(TABLES)]
    found = [kind for name in named if isinstance(kind := resolved(name), type)]
    bases = [base for kind in (*found, Path) for base in kind.__mro__[:-1]]
    return tuple(dict.fromkeys(base for base in bases if base.__flags__ & HEAP_TYPE))


def replaced_unnamed() -> str | None:
    """Return what runs without being named and the program has replaced, a method or torch's collating, or None."""
    collating = resolved("torch.utils.data._utils.collate")
    functions = (collating.collate, collating.default_collate, *collating.default_collate_fn_map.values())
    if not all(genuine_of("torch", function) for function in functions):
        return "how default_collate makes batches"
    numpy = sys.modules.get("numpy")
    if numpy is not None and numpy.get_printoptions()["formatter"]:
        return "how NumPy writes arrays"
    found = (
        (kind, name) for kind in library_types() for name in UNNAMED if name in vars(kind) and is_replaced(kind, name)
    )
    return next((f"{kind.__name__}.{name}" for kind, name in found), None)


def is_replaced(kind: type, name: str) -> bool:
    """Return whether a class has this method from somebody other than its library."""
    member: Any = vars(kind).get(name)
    if isinstance(member, classmethod | staticmethod):
        member = member.__func__
    if isinstance(member, property):
        member = member.fget
    member = without_our_layers(member)
    if isinstance(member, FunctionType):
        return of_the_program(member.__module__) or not genuine(member)
    library = type(member).__module__.partition(".")[0]
    return library not in ("builtins", kind.__module__.partition(".")[0]) and "cython" not in type(member).__name__

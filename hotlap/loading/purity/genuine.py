"""Whether a function is its library's own: a replacement set by the program is the program's own."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from contextlib import suppress
from functools import lru_cache
from types import FunctionType, MethodType, ModuleType
from typing import Any

_STANDARD = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))


def genuine_of(library: str, function: Any) -> bool:
    """Return whether a function is this library's own, and not a replacement by the program."""
    return str(getattr(function, "__module__", "")).partition(".")[0] == library and genuine(function)


def genuine(function: Any) -> bool:
    """Return whether a function belongs to the module that it names, and was not put there by others."""
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType):
        return not isinstance(function, type) or not _is_heap_type_of_the_program(function)
    name, file = function.__module__, function.__code__.co_filename
    if file.startswith("<frozen "):
        return True
    folder = _folder(name.partition(".")[0])
    return folder is not None and file.startswith(folder)


def _is_heap_type_of_the_program(kind: type) -> bool:
    """Return whether a class names a module that it is not in."""
    module = sys.modules.get(kind.__module__)
    return module is not None and getattr(module, kind.__name__, kind) is not kind


@lru_cache(maxsize=256)
def _folder(package: str) -> str | None:
    """Return the folder of a package or the file of a module."""
    file = getattr(sys.modules.get(package), "__file__", None)
    if file is None or (package in sys.stdlib_module_names and not in_the_standard_library(file)):
        return None
    return str(file.removesuffix("__init__.py"))


def in_the_standard_library(file: str) -> bool:
    """Return whether the file is in the standard library; a module of the program may share its name."""
    return file.startswith(_STANDARD) and not file.startswith(_INSTALLED)


def resolved(name: str) -> Any:
    """Return the object of a dotted name if all of it is imported, without triggering lazy imports of modules."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:cut]))
        if found is not None:
            for attribute in parts[cut:]:
                found = vars(found).get(attribute) if isinstance(found, ModuleType) else getattr(found, attribute, None)
                if found is None:
                    break
            return found
    return None


def imported_when_used(module: ModuleType, name: str) -> ModuleType | None:
    """Import a part of NumPy, as it does itself when a program first uses it."""
    if module.__name__ != "numpy":
        return None
    with suppress(ImportError):
        return importlib.import_module(f"numpy.{name}")
    return None

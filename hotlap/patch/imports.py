"""Callbacks for when the program imports a module.

Importing torch makes half a million objects, none of them garbage, and Python looks through them again and again for
some: a tenth of the time that it takes. These collections are put off until it is imported, which pays for our own
start.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any, cast

Call = Callable[[Any], None]
OF_IMPORTLIB = "<frozen importlib._bootstrap_external>"  # whose frames Python removes from import errors

PutOff = Callable[[ModuleType, Callable[[], None]], None]

_awaited: dict[str, list[Call]] = {}
_put_off: dict[str, PutOff] = {}
_not_run: set[str] = set()  # modules that are imported and put off
_seconds: dict[str, float] = {}  # that importing took


def when_imported(name: str, call: Call) -> None:
    """Call `call(module)` once the module is imported; at once if it already is, and has run."""
    if name in sys.modules and name not in _not_run:
        call(sys.modules[name])
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _awaited.setdefault(name, []).append(call)


def put_off(name: str, begin: PutOff) -> bool:
    """Call `begin(module, execute)` when the module is imported, instead of executing it. Return False if it is too
    late for that.
    """
    if name in sys.modules:
        return False
    _put_off[name] = begin
    when_imported(name, lambda module: None)
    return True


def is_put_off(name: str) -> bool:
    """Return whether the program has imported the module, and it has not been executed."""
    return name in _not_run


def seconds_of(name: str) -> float:
    """Return how long it took to import the module; 0 if it was not awaited."""
    return _seconds.get(name, 0.0)


class _Finder:
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _awaited:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if finder is not self and find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = cast("Any", _Loader(spec, spec.loader))
                return spec
        return None


_finder = _Finder()


class _Loader:
    """Stands in for the loader that was found until the module is loaded, and leaves no trace in it."""

    def __init__(self, spec: ModuleSpec, loader: Any) -> None:
        self._spec, self._loader = spec, loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader
        begin = _put_off.pop(self._spec.name, None)
        if begin is None:
            self._execute(module)
        else:
            _not_run.add(self._spec.name)
            begin(module, lambda: self._execute(module))

    def _execute(self, module: ModuleType) -> None:
        pauses = self._spec.name.startswith("torch") and _may_pause_collections()
        if pauses:
            gc.disable()
        began = time.perf_counter()
        try:
            self._loader.exec_module(module)
            _seconds[self._spec.name] = time.perf_counter() - began
            _not_run.discard(self._spec.name)
            _imported(module, self._spec.name)
        finally:
            if pauses:
                gc.enable()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _may_pause_collections() -> bool:
    """Return whether the program leaves collections to Python and does not watch them."""
    return gc.isenabled() and not gc.callbacks and not gc.get_debug()


def _imported(module: ModuleType, name: str) -> None:
    for call in _awaited.pop(name, ()):
        call(module)


def _of_importlib(function: Callable[..., Any]) -> Any:
    assert isinstance(function, FunctionType)
    function.__code__ = function.__code__.replace(co_filename=OF_IMPORTLIB)
    return function


for _method in (_Loader.create_module, _Loader.exec_module, _Loader._execute):
    _of_importlib(_method)

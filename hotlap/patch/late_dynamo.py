"""Dynamo, the front of torch's compiler, runs when something of it is used, and not because an optimizer is made.

That takes a second or more, most of what a small training does before its first step. An optimizer imports Dynamo for
two functions that do nothing unless something is being compiled. Until anything else of it is read or set, the module
is there but has not run.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from hotlap.patch.hidden_frames import unseen
from hotlap.patch.imports import put_off, when_imported

DYNAMO = "torch._dynamo"
OF_COMPILER = "torch._compile"  # whose `_disable_dynamo` wraps methods of optimizers …
CALLED_INSTEAD = "__dynamo_disable"  # … and calls this attribute of the method, or imports Dynamo to make it
OF_A_PACKAGE = frozenset({"__path__", "__all__", "__annotations__"})  # other such names it does not have


def prepare(torch: Any) -> None:
    """Put Dynamo off, unless it is imported already."""
    methods = [
        getattr(method, "__wrapped__", None) for method in vars(torch.optim.Optimizer).values() if _waits(method)
    ]

    def has_run(_: Any) -> None:
        for method in methods:
            vars(method).pop(CALLED_INSTEAD, None)

    if put_off(DYNAMO, _late.begin):
        for method in methods:
            setattr(method, CALLED_INSTEAD, method)
        when_imported(DYNAMO, has_run)


def _waits(method: Any) -> bool:
    """Return whether torch would import Dynamo at the first call of this method."""
    if not isinstance(method, FunctionType) or method.__globals__.get("__name__") != OF_COMPILER:
        return False
    wrapped = getattr(method, "__wrapped__", None)
    return isinstance(wrapped, FunctionType) and CALLED_INSTEAD not in vars(wrapped)


class LateModule(ModuleType):
    @unseen
    def __getattr__(self, name: str) -> Any:
        if name == "graph_break" and not _late.is_running:
            return _break_nothing
        if name.startswith("__") and name not in OF_A_PACKAGE:
            raise AttributeError(f"module {DYNAMO!r} has no attribute {name!r}")
        _late.run(self, name)
        return getattr(self, name)

    @unseen
    def __setattr__(self, name: str, value: Any) -> None:
        if not _late.is_running:
            _late.run(self, name)
        ModuleType.__setattr__(self, name, value)  # it may be an ordinary module by now

    @unseen
    def __delattr__(self, name: str) -> None:
        if not _late.is_running:
            _late.run(self, name)
        ModuleType.__delattr__(self, name)


def _break_nothing(msg: str = "") -> None:
    """Do what Dynamo's `graph_break` does where nothing is compiled."""


class _Late:
    def __init__(self) -> None:
        self.is_running = False
        self._lock = threading.RLock()
        self._execute: Callable[[], None] = lambda: None
        self._path: Any = None

    def begin(self, module: ModuleType, execute: Callable[[], None]) -> None:
        self._execute, self._path = execute, vars(module).pop("__path__")  # its submodules need it to have run
        module.__class__ = LateModule
        warnings._filters_mutated()  # type: ignore[attr-defined]  # as it does: a warning may be shown once more

    def run(self, module: ModuleType, wanted: str) -> None:
        with self._lock:
            if self.is_running:
                raise AttributeError(f"module {DYNAMO!r} has no attribute {wanted!r}")
            if type(module) is not LateModule:
                return  # another thread has run it
            self.is_running = True
            vars(module)["__path__"] = self._path
            try:
                self._execute()
                ModuleType.__setattr__(module, "__class__", ModuleType)
            except BaseException:
                vars(module).pop("__path__", None)
                raise
            finally:
                self.is_running = False


_late = _Late()

"""Dynamo, the front of torch's compiler, runs when something of it is used, and not because an optimizer is made.

That takes a second or more, most of what a small training does before its first step. An optimizer imports Dynamo for
two functions that do nothing unless something is being compiled, and torch's other functions that Dynamo must not read
import it at their first call. Until anything else of it is read or set, the module is there but has not run.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from hotlap.patch.hidden_frames import is_ours, unseen
from hotlap.patch.imports import is_put_off, put_off, seconds_of

DYNAMO = "torch._dynamo"
OF_COMPILER = "torch._compile"  # whose `_disable_dynamo` wraps functions of torch …
CALLED_INSTEAD = "__dynamo_disable"  # … and calls this attribute of them, which Dynamo's `disable` makes at first
OF_TORCH = 0.35  # of the time to import torch: importing Dynamo takes longer than that and the start of hotlap together
OF_A_PACKAGE = frozenset({"__path__", "__all__", "__annotations__"})  # other such names it does not have


def prepare() -> None:
    """Put Dynamo off, unless it is imported already."""
    put_off(DYNAMO, _late.begin)


def seconds_saved() -> float:
    """Return how many seconds earlier the training began, at least."""
    return OF_TORCH * seconds_of("torch") if is_put_off(DYNAMO) else 0.0


class LateModule(ModuleType):
    @unseen
    def __getattr__(self, name: str) -> Any:
        if name == "graph_break" and not _late.is_running:
            return _break_nothing
        if name == "disable" and not _late.is_running and _caller() == OF_COMPILER:
            return _late.disable
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


def _caller() -> str | None:
    """Return the name of the module that called us."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code):
        frame = frame.f_back
    return None if frame is None else frame.f_globals.get("__name__")


def _break_nothing(msg: str = "") -> None:
    """Do what Dynamo's `graph_break` does where nothing is compiled."""


class _Late:
    def __init__(self) -> None:
        self.is_running = False
        self._lock = threading.RLock()
        self._execute: Callable[[], None] = lambda: None
        self._path: Any = None
        self._disabled: list[Any] = []  # functions that Dynamo must not read, once it has run

    def begin(self, module: ModuleType, execute: Callable[[], None]) -> None:
        self._execute, self._path = execute, vars(module).pop("__path__")  # its submodules need it to have run
        module.__class__ = LateModule
        warnings._filters_mutated()  # type: ignore[attr-defined]  # as it does: a warning may be shown once more

    def disable(self, function: Any, *_: Any, **__: Any) -> Any:
        """Stand in for Dynamo's `disable`: there is nothing that would read the function."""
        self._disabled.append(function)
        return function

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
                for function in self._disabled:
                    vars(function).pop(CALLED_INSTEAD, None)
            except BaseException:
                vars(module).pop("__path__", None)
                raise
            finally:
                self.is_running = False


_late = _Late()

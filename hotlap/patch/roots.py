"""Finds the root training module: the outermost module *called* that owns the optimizer's parameters.

No hooks are used: one walk over the garbage collector's objects (tens of milliseconds, once, during warm-up) finds the
outermost owners, whose classes are then watched. An owner that is never called, such as a LightningModule, of which
only training_step is, gives way to its children.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

from hotlap.patch.seams import Seams

DEEPEST = 6


class Roots:
    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._module = seams.torch.nn.Module
        self._watched: dict[int, Any] = {}
        self._called: set[int] = set()
        self._owned: set[int] = set()
        self._depth = 0
        self.tops: list[Any] = []
        self.settled = False

    def search(self, parameters: Iterable[Any]) -> None:
        """Watch the outermost owners of these parameters."""
        self._owned = {id(parameter) for parameter in parameters}
        modules = [obj for obj in gc.get_objects() if issubclass(type(obj), self._module)]
        inner = {id(child) for module in modules for child in children_of(module)}
        tops = [module for module in modules if id(module) not in inner and self._owns(module)]
        self.tops = [self._inside(top) for top in tops]
        for top in self.tops:
            self._watch(top)

    def _inside(self, top: Any) -> Any:
        """Return what a DataParallel over one device, or none, does nothing but call."""
        wraps = type(top) is self._seams.torch.nn.DataParallel and len(top.device_ids) <= 1
        return top.module if wraps else top

    def called(self, module: Any) -> None:
        self._called.add(id(module))

    def settle(self) -> None:
        """After a step, keep the owners that were called and replace the others with their children."""
        if self.settled:
            return
        uncalled = [module for key, module in self._watched.items() if key not in self._called]
        for module in uncalled:
            self._replace(module)
        self._depth += 1
        self.settled = not uncalled or self._depth >= DEEPEST

    def _replace(self, module: Any) -> None:
        owners = [child for child in children_of(module) if self._owns(child)]
        if not owners or is_compiled(module):
            return
        del self._watched[id(module)]
        self._seams.unwatch_calls_of(module)
        for child in owners:
            self._watch(child)

    def _watch(self, module: Any) -> None:
        self._seams.watch_calls_of(module)
        self._watched[id(module)] = module

    def _owns(self, module: Any) -> bool:
        return any(id(parameter) in self._owned for parameter in module.parameters())

    def forget(self) -> None:
        self.tops.clear()
        self._watched.clear()

    @property
    def seen(self) -> bool:
        return bool(self._called)

    @property
    def called_modules(self) -> list[Any]:
        """The watched modules that were called."""
        return [module for key, module in self._watched.items() if key in self._called]


def children_of(module: Any) -> list[Any]:
    children = module.__dict__.get("_modules") or {}
    return [child for child in children.values() if child is not None]


def is_compiled(module: Any) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None

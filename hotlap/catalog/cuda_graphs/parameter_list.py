"""What `root.parameters()` yields, without walking through all modules at each step.

A program clips `model.parameters()`, a generator made for that call. If it would run torch's own code over unchanged
modules, its outcome is already known.
"""

from __future__ import annotations

import inspect
from typing import Any

WALKS = ("parameters", "named_parameters", "named_modules", "_named_members")


class ParameterList:
    def __init__(self, torch: Any, module: Any) -> None:
        self._code = torch.nn.Module.parameters.__code__
        self._parameters = list(module.parameters()) if _walks_as_torch(torch.nn.Module, module) else None

    def of(self, given: Any, module: Any) -> list[Any] | None:
        """Return the parameters if `given` is surely an unread `parameters()` generator of this module, else None."""
        if self._parameters is None or getattr(given, "gi_code", None) is not self._code:
            return None
        if inspect.getgeneratorstate(given) != inspect.GEN_CREATED:
            return None
        call = given.gi_frame.f_locals
        if call["self"] is not module or call["recurse"] is not True:
            return None
        given.close()  # as if it had been read to its end
        return self._parameters

    def forget(self) -> None:
        self._parameters = None


def _walks_as_torch(base: Any, module: Any) -> bool:
    own = [getattr(base, name) for name in WALKS]
    return all(
        getattr(type(submodule), name) is function and name not in vars(submodule)
        for submodule in module.modules()
        for name, function in zip(WALKS, own, strict=True)
    )

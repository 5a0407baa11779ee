"""What `root.parameters()` gives, without the walk through all modules that it takes at each step.

A program clips `model.parameters()`: a generator, made for this call. Where torch's own code would run in it, over
modules that are as they were, its outcome is known.
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
        """None: it is something else than the parameters of this module, or nobody knows what."""
        if self._parameters is None or getattr(given, "gi_code", None) is not self._code:
            return None
        if inspect.getgeneratorstate(given) != inspect.GEN_CREATED:
            return None
        asked = given.gi_frame.f_locals
        if asked["self"] is not module or asked["recurse"] is not True:
            return None
        given.close()  # as one that was read to its end
        return self._parameters

    def forget(self) -> None:
        self._parameters = None


def _walks_as_torch(base: Any, module: Any) -> bool:
    own = [getattr(base, name) for name in WALKS]
    return all(
        getattr(type(one), name) is function and name not in vars(one)
        for one in module.modules()
        for name, function in zip(WALKS, own, strict=True)
    )

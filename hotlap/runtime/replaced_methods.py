"""Whether a method of torch's classes is torch's own, or the program has put another in its place."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

from hotlap.loading.purity.genuine import genuine_of
from hotlap.loading.purity.objects import without_our_layers


def is_of_torch(method: Any) -> bool:
    """Return whether a method is torch's, layer by layer: the program's own would lead back to ours by its hooks."""
    method = without_our_layers(method)
    while hasattr(method, "__wrapped__") and (genuine_of("torch", method) or _runs_hooks(method)):
        method = without_our_layers(method.__wrapped__)
    return genuine_of("torch", method)


def _runs_hooks(method: Any) -> bool:
    """Return whether it is torch's function that runs hooks around a step; around one of ours it has our name."""
    optimizer = sys.modules["torch"].optim.Optimizer
    return type(method) is FunctionType and method.__code__ is optimizer.profile_hook_step(_any_step).__code__


def _any_step() -> None: ...

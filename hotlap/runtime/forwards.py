"""Replaces a module's forward during one call, and no longer.

A module's attributes get copied and saved with it, so nothing of ours may stay there. Its hooks run as always.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MISSING: Any = object()


def call_with(forward: Callable[..., Any], module: Any, call: Callable[[], Any]) -> Any:
    """Return `call()`, during which `module.forward` is this one."""
    held = vars(module)
    before = held.get("forward", MISSING)  # Accelerate keeps one of its own there
    held["forward"] = forward
    try:
        return call()
    finally:
        if before is MISSING:
            held.pop("forward", None)
        else:
            held["forward"] = before


def is_wrapper(module: Any) -> bool:
    """Return whether this is DataParallel, DistributedDataParallel or the like, whose forward manages replicas."""
    names = {base.__name__ for base in type(module).__mro__}
    return bool(names & {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"})

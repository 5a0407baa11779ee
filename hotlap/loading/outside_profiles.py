"""Keeps our work out of the profiles that the program records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any


def is_profiled(torch: Any) -> bool:
    """Return whether a torch profiler is active in this thread."""
    return bool(torch._C._autograd._profiler_enabled())


def has_modes(torch: Any) -> bool:
    """Return whether a torch mode of the program sees all operations; a default device does not count."""
    if torch._C._len_torch_dispatch_stack():
        return True
    if not torch._C._len_torch_function_stack():
        return False
    stack = torch.overrides._get_current_function_mode_stack()
    return any(type(mode).__module__ != "torch.utils._device" for mode in stack)


def are_operations_seen(torch: Any) -> bool:
    """Return whether a profiler or a torch mode of the program sees operations."""
    return is_profiled(torch) or has_modes(torch)


@contextmanager
def unseen_operations(torch: Any) -> Iterator[None]:
    """Hide the operations in this block, which are on plain tensors, from profilers and modes."""
    without_modes = torch.utils._python_dispatch._disable_current_modes
    modes = without_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()
    with unprofiled(torch), modes, torch._C.DisableTorchFunction():
        yield


@contextmanager
def unprofiled(torch: Any) -> Iterator[None]:
    """Hide the operations in this block from profilers."""
    if not is_profiled(torch):
        yield
        return
    record = torch._C._autograd._enable_record_function
    record(False)
    try:
        yield
    finally:
        record(True)

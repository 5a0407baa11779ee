"""Keeps our work out of the profiles that the program records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any


def is_profiled(torch: Any) -> bool:
    """Return whether a torch profiler is active in this thread."""
    return bool(torch._C._autograd._profiler_enabled())


def are_operations_seen(torch: Any) -> bool:
    """Return whether a profiler or a torch mode of the program sees operations."""
    return bool(torch._C._autograd._profiler_enabled() or torch._C._len_torch_dispatch_stack())


@contextmanager
def unseen_operations(torch: Any) -> Iterator[None]:
    """Hide the operations in this block from profilers and modes."""
    modes = torch.utils._python_dispatch._disable_current_modes
    with unprofiled(torch), modes() if torch._C._len_torch_dispatch_stack() else nullcontext():
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

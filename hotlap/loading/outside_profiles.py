"""Work of ours that is not to appear in a profile which the program makes of itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any


def is_profiled(torch: Any) -> bool:
    """Whether the program is being profiled by torch, in this thread."""
    return bool(torch._C._autograd._profiler_enabled())


def are_operations_seen(torch: Any) -> bool:
    """By a profiler of the program, or by a mode that it has entered."""
    return bool(torch._C._autograd._profiler_enabled() or torch._C._len_torch_dispatch_stack())


@contextmanager
def unseen_operations(torch: Any) -> Iterator[None]:
    """Operations in here reach neither."""
    modes = torch.utils._python_dispatch._disable_current_modes
    with unprofiled(torch), modes() if torch._C._len_torch_dispatch_stack() else nullcontext():
        yield


@contextmanager
def unprofiled(torch: Any) -> Iterator[None]:
    """Operations in here are recorded by no profiler."""
    if not is_profiled(torch):
        yield
        return
    record = torch._C._autograd._enable_record_function
    record(False)
    try:
        yield
    finally:
        record(True)

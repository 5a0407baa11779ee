"""Work of ours that is not to appear in a profile which the program makes of itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def is_profiled(torch: Any) -> bool:
    """Whether the program is being profiled by torch, in this thread."""
    return bool(torch._C._autograd._profiler_enabled())


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

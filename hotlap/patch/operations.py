"""Whether the program looks at the operations that pass through torch: then none of ours may be among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ANYWHERE = "_is_profiler_enabled"  # of torch.autograd.profiler, kept for all threads; None: this torch does not tell


def watching(torch: Any) -> Callable[[], bool]:
    """watched(): a profiler runs in any thread, or a mode of the program's is active in this one. Some 200 ns."""
    anywhere, here = vars(torch.autograd.profiler), torch.autograd._profiler_enabled
    dispatched, called = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack

    def watched() -> bool:
        return bool(anywhere.get(ANYWHERE) or here() or dispatched() or called())

    return watched

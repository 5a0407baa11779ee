"""Whether a worker has shown a warning. Python shows most of them once in a process: workers that stay would not show
them again in the next epoch, as new ones do.
"""

from __future__ import annotations

import mmap
import warnings
from typing import Any


class WarningFlag:
    """Called in each worker when it starts, as a worker_init_fn. Its memory is shared with processes forked later."""

    def __init__(self) -> None:
        self._flag = mmap.mmap(-1, 1)

    def __bool__(self) -> bool:
        return self._flag[0] != 0

    def __call__(self, worker: int) -> None:
        show: Any = warnings._showwarnmsg  # type: ignore[attr-defined]

        def noted(message: Any) -> None:
            self._flag[0] = 1
            show(message)

        warnings._showwarnmsg = noted  # type: ignore[attr-defined]

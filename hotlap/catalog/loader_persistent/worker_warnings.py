"""Records whether a worker has shown a warning.

Python shows most warnings once per process: persistent workers would not repeat them in the next epoch, as new ones do.
"""

from __future__ import annotations

import mmap
import warnings
from typing import Any


class WarningFlag:
    """A worker_init_fn that sets a flag once its worker warns. The flag's memory is shared with forked processes."""

    def __init__(self) -> None:
        self._flag = mmap.mmap(-1, 1)

    def __bool__(self) -> bool:
        return self._flag[0] != 0

    def __call__(self, worker: int) -> None:
        show: Any = warnings._showwarnmsg  # type: ignore[attr-defined]

        def remember_and_show(message: Any) -> None:
            self._flag[0] = 1
            show(message)

        warnings._showwarnmsg = remember_and_show  # type: ignore[attr-defined]

"""Ends the command cleanly after the window, at the same step in every rank.

An optimizer's post-step hook raises an exception in the program: its `finally` blocks run, its workers are reaped, and
the interpreter exits with code 0 as for sys.exit(). This ends plain loops, Lightning, Accelerate and HF.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotlap.records import private

FILE = "stop-at.txt"
AHEAD = 4  # steps from the first rank's decision to the stop; other ranks are at most one step away
TRIES = 3


class WindowComplete(SystemExit):
    """Raised when enough was measured. As a SystemExit it ends the program without a traceback if nobody catches it."""

    def __init__(self) -> None:
        super().__init__(0)


class Stopper:
    """Counts optimizer steps and raises at the agreed one. The first rank decides, and the others read its decision."""

    def __init__(self, folder: Path, rank: int, world_size: int, last_words: Callable[[], None]) -> None:
        self._file, self._rank, self._world = folder / FILE, rank, world_size
        self._last_words = last_words
        self._count = 0
        self._target: int | None = None
        self._raised = 0
        self._handle: Any = None

    def install(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._handle = register_optimizer_step_post_hook(self._after_step)

    def remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()

    def decide(self) -> None:
        """Decide on the last step, because this process has measured enough."""
        if self._world == 1:
            self._target = self._count + 1
        elif self._rank == 0 and self._target is None:
            target = self._count + AHEAD
            draft = self._file.with_suffix(".tmp")
            private.write_text(draft, str(target))
            draft.replace(self._file)
            self._target = target  # only now: a rank that stopped alone would leave the others waiting for it

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._count += 1
        if self._target is None and self._rank and self._file.exists():
            self._target = int(self._file.read_text(encoding="utf-8"))
        if self._target is None or self._count < self._target or self._raised >= TRIES:
            return
        self._raised += 1
        self._last_words()
        raise WindowComplete

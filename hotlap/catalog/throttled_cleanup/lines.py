"""Tracks the lines that make clean-up calls, and which of them are in the training loop."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

OURS = str(Path(__file__).parents[2])
EVERY = 100  # calls from one line
CLOSE = 5  # optimizer steps: calls no further apart are made by the loop, not between two trainings
TRUSTED = 3  # such close calls before a line counts as in the loop


class CleanupLine:
    """A line and the caller of its function: a helper may be called from the loop and from elsewhere."""

    def __init__(self, name: str, result_used: bool) -> None:
        self.name, self._result_used = name, result_used
        self.every = EVERY
        self._last_step: int | None = None
        self._close = self._since_done = self._optimizers = 0
        self.codes: tuple[object, ...] = ()  # kept alive while their ids are in use

    def leave_out(
        self,
        step: int,
        of_use: Callable[[], bool] = lambda: True,
        optimizers: int = 1,
        needed: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Return whether to skip this call; must be called once per call.

        `of_use` is checked when a call is due after many skipped ones, `needed` when it would be skipped. `optimizers`
        is how many have stepped so far: if it grew since the last call, another training has begun, and what an earlier
        one left behind must be freed.
        """
        near = self._last_step is not None and step - self._last_step <= CLOSE and optimizers == self._optimizers
        self._last_step, self._optimizers = step, optimizers
        self._close = self._close + 1 if near else 0
        self._since_done += 1
        in_loop = step > 0 and self._close >= TRUSTED and not self._result_used
        if in_loop and self._since_done < self.every and not needed():
            return True
        self._since_done = 0
        return in_loop and not of_use()

    def was_of_use(self) -> None:
        """Note that the call just made was useful, so that the next TRUSTED calls are made too."""
        self._close = -1


class CleanupLines:
    def __init__(self) -> None:
        self.steps = self.optimizers = 0
        self._known: dict[tuple[object, ...], CleanupLine] = {}

    def here(self, call: str) -> CleanupLine | None:
        """Return the line making the current call; None if no Python code makes it, or torch does, which for example
        cleans up before a capture.
        """
        frame = _caller(sys._getframe(1))
        if frame is None or frame.f_globals.get("__name__", "").startswith("torch."):
            return None
        above = frame.f_back
        key = (call, id(frame.f_code), frame.f_lasti, above and id(above.f_code), above and above.f_lasti)
        if (line := self._known.get(key)) is None:
            name = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            line = self._known[key] = CleanupLine(name, result_is_used(frame.f_code, frame.f_lasti))
            line.codes = (frame.f_code, above and above.f_code)
        return line


def _caller(frame: FrameType | None) -> FrameType | None:
    while frame is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@cache
def _is_ours(filename: str) -> bool:
    return filename.startswith(OURS)


def result_is_used(code: CodeType, call: int) -> bool:
    """Return whether the result of the call at this offset is used."""
    following = next((instruction for instruction in dis.get_instructions(code) if instruction.offset > call), None)
    return following is None or following.opname != "POP_TOP"

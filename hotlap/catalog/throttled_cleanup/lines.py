"""The lines that make clean-up calls, and which of them are in the training loop."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

OURS = str(Path(__file__).parents[2])
EVERY = 100  # calls from one place
CLOSE = 5  # optimizer steps: calls at most so far apart are made by the loop, not between two trainings
TRUSTED = 3  # calls so close before a place counts as in the loop


class CleanupLine:
    """A line, with the line that called its function: a helper may be called from the loop and from elsewhere."""

    def __init__(self, name: str, result_used: bool) -> None:
        self.name, self._result_used = name, result_used
        self.every = EVERY
        self._last_step: int | None = None
        self._close = self._since_done = self._optimizers = 0
        self.codes: tuple[object, ...] = ()  # alive for as long as their ids are looked up

    def leave_out(
        self,
        step: int,
        of_use: Callable[[], bool] = lambda: True,
        optimizers: int = 1,
        needed: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Told once per call. `of_use` is asked when it would be made again after many that were left out,
        `needed` when it would be left out.

        `optimizers` have stepped so far. One more than at the last call: a training has begun meanwhile, and what an
        earlier one left behind is to go.
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
        """The call that was just made: the next TRUSTED ones are made too."""
        self._close = -1


class CleanupLines:
    def __init__(self) -> None:
        self.steps = self.optimizers = 0
        self._known: dict[tuple[object, ...], CleanupLine] = {}

    def here(self, what: str) -> CleanupLine | None:
        """The place of the call that is being made; None where no Python code made it, or torch's own, which has its
        reasons: it clears up ahead of a capture.
        """
        frame = _caller(sys._getframe(1))
        if frame is None or frame.f_globals.get("__name__", "").startswith("torch."):
            return None
        above = frame.f_back
        key = (what, id(frame.f_code), frame.f_lasti, above and id(above.f_code), above and above.f_lasti)
        if (place := self._known.get(key)) is None:
            name = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            place = self._known[key] = CleanupLine(name, result_is_used(frame.f_code, frame.f_lasti))
            place.codes = (frame.f_code, above and above.f_code)
        return place


def _caller(frame: FrameType | None) -> FrameType | None:
    while frame is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@cache
def _is_ours(filename: str) -> bool:
    return filename.startswith(OURS)


def result_is_used(code: CodeType, call: int) -> bool:
    """Whether what the call at this offset returns goes anywhere but away."""
    following = next((instruction for instruction in dis.get_instructions(code) if instruction.offset > call), None)
    return following is None or following.opname != "POP_TOP"

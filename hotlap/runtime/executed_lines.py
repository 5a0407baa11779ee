"""Sees whether some lines of the program's code are executed while it runs for our own purposes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any


class ExecutedLines:
    def __init__(self, lines: Mapping[CodeType, Mapping[int, str]]) -> None:
        """`lines` says for lines of functions what they do."""
        self._lines = lines
        self.found: str | None = None  # what the first of them that was executed does

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch this thread. Where the program traces itself, every line counts as executed."""
        if not self._lines:
            yield
            return
        if sys.gettrace() is not None:
            self.found = next(what for lines in self._lines.values() for what in lines.values())
            yield
            return
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._executed if frame.f_code in self._lines else None

    def _executed(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and (what := self._lines[frame.f_code].get(frame.f_lineno or 0)) is not None:
            self.found = self.found or what
        return self._executed

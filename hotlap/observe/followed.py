"""Follows the training thread line by line for a few steps, last of all, because nothing slows a program more."""

from __future__ import annotations

import sys
from collections import defaultdict
from types import CodeType, FrameType
from typing import Any

from hotlap.observe.frames import is_program
from hotlap.records.observation import FollowedLines

FOLLOW_SECONDS, FOLLOW_STEPS = 2.0, 5


class LineFollower:
    """Notes the lines of the program that run between `start` and `stop`, which one thread must call."""

    def __init__(self) -> None:
        self.steps = 0
        self._ran: defaultdict[CodeType, set[int]] = defaultdict(set)

    def start(self) -> None:
        sys.settrace(self._called)
        self._trace_callers(self._passed)

    def stop(self) -> None:
        sys.settrace(None)
        self._trace_callers(None)

    def _trace_callers(self, trace: Any) -> None:
        """Set the trace function of the frames that run already, which no call event reports."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if is_program(frame.f_code.co_filename):
                frame.f_trace = trace
            frame = frame.f_back

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        if not is_program(frame.f_code.co_filename):
            return None
        self._ran[frame.f_code].add(frame.f_lineno)
        return self._passed

    def _passed(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self._ran[frame.f_code].add(frame.f_lineno)
        return self._passed

    def lines(self) -> FollowedLines:
        ran: defaultdict[str, set[int]] = defaultdict(set)
        known: defaultdict[str, set[int]] = defaultdict(set)
        for code, lines in self._ran.items():
            ran[code.co_filename] |= lines
            known[code.co_filename] |= {line for _, _, line in code.co_lines() if line}
        missed = {file: tuple(sorted(lines - ran[file])) for file, lines in known.items()}
        return FollowedLines(
            steps=self.steps, ran={file: tuple(sorted(lines)) for file, lines in ran.items()}, missed=missed
        )


def may_follow() -> bool:
    """Return whether following changes nothing: the program has no tracer, and no code that torch compiled."""
    compiler = sys.modules.get("torch._dynamo.utils")
    return sys.gettrace() is None and not (compiler is not None and compiler.counters.get("frames"))

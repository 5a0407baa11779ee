"""Hides our frames when the program walks its stack or a traceback."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from hotlap.patch.hidden_frames import is_ours, without_our_frames
from hotlap.patch.ledger import Ledger


def hide_from_stacks(ledger: Ledger) -> None:
    """Hide our frames from the functions that walk stacks and tracebacks.

    traceback.print_stack, logging with stack_info and torch's anomaly mode use the first, `inspect.stack` the second.
    The others walk a traceback, which has our frames if a signal handler of the program raises while our code runs.
    """
    ledger.wrap(traceback, "walk_stack", _walking_stack)
    ledger.wrap(inspect, "getouterframes", _outer_frames)
    for name in ("walk_tb", "_walk_tb_with_full_positions"):
        if hasattr(traceback, name):
            ledger.wrap(traceback, name, _walking_traceback)


def _walking_stack(original: Callable[..., Any]) -> Callable[..., Any]:
    def walk_stack(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
        skip = frame is None  # the original finds its caller by counting frames, and this adds one
        for found, line in original(frame):
            if skip and not is_ours(found.f_code):
                skip = False
            elif not is_ours(found.f_code):
                yield found, line

    return walk_stack


def _outer_frames(original: Callable[..., Any]) -> Callable[..., Any]:
    def getouterframes(frame: FrameType, *args: Any, **kwargs: Any) -> list[Any]:
        return [record for record in original(frame, *args, **kwargs) if not is_ours(record.frame.f_code)]

    return getouterframes


def _walking_traceback(original: Callable[..., Any]) -> Callable[..., Any]:
    def walk(trace: TracebackType | None) -> Iterator[Any]:
        for is_of_the_program, found in zip(_positions(trace), original(trace), strict=False):
            if is_of_the_program:
                yield found

    return walk


def _positions(trace: TracebackType | None) -> Iterator[bool]:
    """Yield for each entry of a traceback whether it is the program's."""
    while trace is not None:
        yield not is_ours(trace.tb_frame.f_code)
        trace = trace.tb_next


def hide_when_shown(ledger: Ledger) -> None:
    """On Python 3.10, show an error that ends the program without our frames; see hidden_frames.py."""
    if sys.version_info >= (3, 11):
        return
    show = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        show(kind, error, without_our_frames(trace))

    def undo() -> None:
        if sys.excepthook is excepthook:
            sys.excepthook = show

    sys.excepthook = excepthook
    ledger.later(undo)

"""No frame of ours where the program walks its stack or a traceback."""

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
    """traceback.print_stack, logging with stack_info and torch's anomaly mode walk the stack by the first of these,
    `inspect.stack` by the second; a traceback is walked by the others, and has our frames where a signal handler of the
    program raises while code of ours happens to run.
    """
    ledger.wrap(traceback, "walk_stack", _walking_stack)
    ledger.wrap(inspect, "getouterframes", _outer_frames)
    for name in ("walk_tb", "_walk_tb_with_full_positions"):
        if hasattr(traceback, name):
            ledger.wrap(traceback, name, _walking_traceback)


def _walking_stack(original: Callable[..., Any]) -> Callable[..., Any]:
    def walk_stack(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
        skip = frame is None  # the original finds who asked by counting frames, of which this is one more
        for found, line in original(frame):
            if skip and not is_ours(found.f_code):
                skip = False
            elif not is_ours(found.f_code):
                yield found, line

    return walk_stack


def _outer_frames(original: Callable[..., Any]) -> Callable[..., Any]:
    def getouterframes(frame: FrameType, *args: Any, **kwargs: Any) -> list[Any]:
        return [one for one in original(frame, *args, **kwargs) if not is_ours(one.frame.f_code)]

    return getouterframes


def _walking_traceback(original: Callable[..., Any]) -> Callable[..., Any]:
    def walk(trace: TracebackType | None) -> Iterator[Any]:
        for is_of_the_program, found in zip(_positions(trace), original(trace), strict=False):
            if is_of_the_program:
                yield found

    return walk


def _positions(trace: TracebackType | None) -> Iterator[bool]:
    """Of each entry of a traceback, whether it is the program's."""
    while trace is not None:
        yield not is_ours(trace.tb_frame.f_code)
        trace = trace.tb_next


def hide_when_shown(ledger: Ledger) -> None:
    """On Python 3.10 an error that ends the program is shown without our frames, if one that it catches is not."""
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

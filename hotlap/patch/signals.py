"""Recognises errors that a signal handler of the program raises while our code happens to run."""

from __future__ import annotations

import signal
import sys
import traceback
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any


def raised_by_signal(error: BaseException) -> bool:
    """Return whether a signal handler raised the error, which then says nothing about the code it interrupted."""
    codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def is_in_handler() -> bool:
    """Return whether a signal handler of the program is running now."""
    codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_stack(sys._getframe()))


def _code(handler: Any) -> CodeType | None:
    while isinstance(handler, partial):
        handler = handler.func
    if not isinstance(handler, FunctionType | MethodType):
        handler = getattr(type(handler), "__call__", None)  # noqa: B004 a callable object: its class has the code
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None

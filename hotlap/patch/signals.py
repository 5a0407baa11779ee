"""Recognises errors of the program that reach our code from outside, while it happens to run.

A signal handler of the program may raise, and another thread may throw an exception into ours, as packages for
timeouts do. Such an error says nothing about the code that it interrupts.
"""

from __future__ import annotations

import inspect
import opcode
import signal
import sys
import traceback
from functools import partial
from types import CodeType, FrameType, FunctionType, MethodType, TracebackType
from typing import Any

from hotlap.patch.hidden_frames import is_ours

PACKAGE = __name__.partition(".")[0]  # hotlap, or its name inside the user's process
NOT_THE_PROGRAMS = {PACKAGE, "hotlap", "torch", "numpy", "psutil", "pynvml", *sys.stdlib_module_names}
RAISE = opcode.opmap["RAISE_VARARGS"]
# Of those at which Python raises what another thread has thrown.
NEVER_FAILING = {opcode.opmap.get(name) for name in ("RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")}
MADE_UP = 6  # bytes of the code in a frame that stands for a function in C, as Cython's do


def comes_from_outside(error: BaseException) -> bool:
    """Return whether a signal handler raised the error or another thread threw it, so that it is the program's."""
    codes = _handlers_installed()
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(frame.f_code in codes or _has_interrupted(frame) for frame in frames):
        return True
    return _is_of_the_program(type(error)) and _was_thrown(error.__traceback__)


def is_in_handler() -> bool:
    """Return whether a signal handler of the program is running now."""
    codes = _handlers_installed()
    return any(frame.f_code in codes for frame, _ in traceback.walk_stack(sys._getframe()))


def _handlers_installed() -> set[CodeType]:
    codes = (_code(signal.getsignal(number)) for number in signal.valid_signals())
    return {code for code in codes if code is not None}


def _code(handler: Any) -> CodeType | None:
    while isinstance(handler, partial):
        handler = handler.func
    if not isinstance(handler, FunctionType | MethodType):
        handler = getattr(type(handler), "__call__", None)  # noqa: B004 a callable object: its class has the code
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _has_interrupted(frame: FrameType) -> bool:
    """Return whether the frame is of a signal handler: one of its arguments is the frame that it interrupted.

    So it is recognised even if the handler is no longer installed. A trace function is called with that frame too.
    """
    code, below = frame.f_code, frame.f_back
    if below is None or is_ours(code):
        return False
    named = code.co_argcount + code.co_kwonlyargcount
    values = [frame.f_locals.get(name) for name in code.co_varnames[:named]]
    if code.co_flags & inspect.CO_VARARGS:
        values += frame.f_locals.get(code.co_varnames[named], ())
    return any(value is below for value in values)


def _is_of_the_program(kind: type[BaseException]) -> bool:
    return _top(kind.__module__) not in NOT_THE_PROGRAMS


def _was_thrown(trace: TracebackType | None) -> bool:
    """Return whether the error began where nothing raises one of its type: in the program's code at an instruction
    that cannot fail, or elsewhere without a `raise`.
    """
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    frame = trace.tb_frame
    bytecode = frame.f_code.co_code
    if len(bytecode) <= MADE_UP:
        return False
    if is_ours(frame.f_code) or _top(frame.f_globals.get("__name__")) in NOT_THE_PROGRAMS:
        return bytecode[trace.tb_lasti] != RAISE
    return bytecode[trace.tb_lasti] in NEVER_FAILING


def _top(module: Any) -> str:
    return str(module).partition(".")[0]

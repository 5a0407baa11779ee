"""Keeps our frames out of the errors, warnings and log records that the program sees.

Every function of ours between two frames of the program lets an error out by

    except BaseException as error:
        leave_no_frame(error)
        raise

which costs nothing while nothing is raised; a bare `raise` adds no entry for its own function. `@unseen` does the same
around a whole function, at the cost of one more call; the ledger adds it to every function that does neither. In both,
a signal handler may raise even before the first line.

Python 3.10 stores the traceback of an error being handled apart from the error. There one entry of ours remains in
what the program catches, while an error that ends the program is shown without it.

In a process that we entered, our files have names that `warnings` and `logging` skip (see private_package.py). A
warning that torch raises in C is attributed to the top Python frame: `from_line` makes the call appear to come from
the frame of the program.
"""

from __future__ import annotations

import dis
import functools
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, TypeVar

from hotlap.patch.private_package import SEEN, UNSEEN_ROOMS

Function = TypeVar("Function", bound=Callable[..., Any])

Make = Callable[[FrameType, Any, Any], Any]

ROOMS = tuple(f"{Path(__file__).parents[1] / room}{os.sep}" for room in UNSEEN_ROOMS)
AT = "<hotlap>"  # the name of the functions that `at` makes


def is_ours(code: CodeType) -> bool:
    file = code.co_filename
    return (file.startswith(ROOMS) and not file.endswith(SEEN)) or code.co_name == AT


def leave_no_frame(error: BaseException) -> None:
    error.__traceback__ = without_our_frames(error.__traceback__)
    while error.__context__ is not None and _is_handled_by_us(error.__context__):
        error.__context__ = error.__context__.__context__


def _is_handled_by_us(error: BaseException) -> bool:
    """Return whether our code caught the error: the traceback begins in the function that did."""
    trace = error.__traceback__
    return trace is not None and is_ours(trace.tb_frame.f_code)


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    trace = link = _next_of_the_program(trace)
    while link is not None:
        following = _next_of_the_program(link.tb_next)
        if following is not link.tb_next:
            link.tb_next = following
        link = following
    return trace


def _next_of_the_program(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and is_ours(trace.tb_frame.f_code):
        trace = trace.tb_next
    return trace


def unseen(function: Function) -> Function:
    """Wrap the function so that its errors carry no frame of ours."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise

    _hide_from_the_start(call)
    return call  # type: ignore[return-value]  # same signature as what it wraps


def sealed(wrapper: Any) -> Any:
    """Return the wrapper, made `unseen` unless it hides its frames itself; for what the ledger installs."""
    if not isinstance(wrapper, FunctionType):
        return wrapper
    if leave_no_frame.__name__ not in wrapper.__code__.co_names:
        return unseen(wrapper)
    _hide_from_the_start(wrapper)
    return wrapper


_whole: dict[CodeType, CodeType] = {}


def _hide_from_the_start(wrapper: Any) -> None:
    """Let the outermost `try` of the wrapper begin before its first line, where an interruption may raise as well."""
    code = wrapper.__code__
    if code not in _whole:
        _whole[code] = _tried_from_the_start(code)
    wrapper.__code__ = _whole[code]


def _tried_from_the_start(code: Any) -> Any:
    """Add an entry to the table of exception handlers, of Python 3.11 and later, for the instruction RESUME."""
    entries = dis._parse_exception_table(code) if sys.version_info >= (3, 11) else []  # type: ignore[attr-defined]
    if not entries or code.co_flags & inspect.CO_GENERATOR:
        return code
    start = 2 * code.co_code[::2].index(dis.opmap["RESUME"])
    first = entries[0]
    if not start < first.start <= start + 4:  # only `try:` itself lies between
        return code
    added = (start // 2, (first.start - start) // 2, first.target // 2, first.depth << 1 | first.lasti)
    table = b"".join(map(_varint, added))
    return code.replace(co_exceptiontable=bytes([table[0] | 128]) + table[1:] + code.co_exceptiontable)


def _varint(number: int) -> bytes:
    """Return the number in groups of six bits, of which all but the last are marked."""
    groups = [number & 63]
    while number := number >> 6:
        groups.append(number & 63 | 64)
    return bytes(reversed(groups))


def at(frame: FrameType) -> Callable[..., Any]:
    """Return `call(function, args, kwargs)`, which calls as if from the current line of this frame."""
    return _function_at(frame.f_code.co_filename, frame.f_lineno, _Globals(frame.f_globals))


class _Globals:
    """A module's names, compared by identity."""

    __slots__ = ("names",)

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names

    def __hash__(self) -> int:
        return id(self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Globals) and other.names is self.names


def _call(function: Any, args: Any, kwargs: Any) -> Any: return function(*args, **kwargs)  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _function_at(file: str, line: int, names: _Globals) -> Callable[..., Any]:
    code = _call.__code__.replace(co_filename=file, co_firstlineno=line, co_name=AT)
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is not None:
        dynamo.skip_code(code)  # it is not the program's code, whatever its file name says
    return FunctionType(code, names.names, AT)


def from_line(function: Callable[..., Any]) -> Make:
    """Return `make(frame, args, kwargs)`, which calls as if from the line of this frame, where that could show."""
    if hasattr(inspect.unwrap(function), "__code__"):
        return lambda frame, args, kwargs: function(*args, **kwargs)
    return lambda frame, args, kwargs: at(frame)(function, args, kwargs)

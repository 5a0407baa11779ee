"""Keeps our frames out of the errors, warnings and log records that the program sees.

Every function of ours between two frames of the program lets an error out by

    except BaseException as error:
        leave_no_frame(error)
        raise

which costs nothing while nothing is raised; a bare `raise` adds no entry for its own function. `@unseen` does the same
around a whole function, at the cost of one more call; the ledger adds it to every function that does neither.

Python 3.10 stores the traceback of an error being handled apart from the error. There one entry of ours remains in
what the program catches, while an error that ends the program is shown without it.

In a process that we entered, our files have names that `warnings` and `logging` skip (see private_package.py). A
warning that torch raises in C is attributed to the top Python frame: `from_line` makes the call appear to come from
the frame of the program.
"""

from __future__ import annotations

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

    return call  # type: ignore[return-value]  # same signature as what it wraps


def sealed(wrapper: Any) -> Any:
    """Return the wrapper, made `unseen` unless it hides its frames itself; for what the ledger installs."""
    if not isinstance(wrapper, FunctionType) or leave_no_frame.__name__ in wrapper.__code__.co_names:
        return wrapper
    return unseen(wrapper)


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


def forget_functions() -> None:
    """Make the functions of `at` anew, now that Dynamo is there and is to be told that it must not compile them."""
    _function_at.cache_clear()


def from_line(function: Callable[..., Any]) -> Make:
    """Return `make(frame, args, kwargs)`, which calls as if from the line of this frame, where that could show."""
    if hasattr(inspect.unwrap(function), "__code__"):
        return lambda frame, args, kwargs: function(*args, **kwargs)
    return lambda frame, args, kwargs: at(frame)(function, args, kwargs)

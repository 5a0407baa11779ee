"""hotlap.span("name"): a user's own section in the breakdown, as a context manager or a decorator.

Outside a hotlap run it costs a global look-up and nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


class Recorder(Protocol):
    def enter_span(self, name: str) -> None: ...
    def leave_span(self, name: str) -> None: ...


_recorder: Recorder | None = None  # set while a run is observed


def record_to(recorder: Recorder | None) -> None:
    global _recorder
    _recorder = recorder


class span:  # noqa: N801 used as a function
    """`with hotlap.span("augment"): …` or `@hotlap.span("augment")`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        if _recorder is not None:
            _recorder.enter_span(self.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _recorder is not None:
            _recorder.leave_span(self.name)

    def __call__(self, function: Function) -> Function:
        name = self.name

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            if _recorder is None:
                return function(*args, **kwargs)
            with span(name):
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]  # same signature as what it wraps

"""hotlap.span("name"): a section of the user's own in the breakdown, as a context manager or a decorator.

Outside a hotlap run it costs one global look-up. Inside a compiled graph it does nothing: no graph break and no guard,
so no recompilation when recording begins or ends.
"""

from __future__ import annotations

import functools
import sys
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


def _listener() -> Recorder | None:
    """Return the active recorder. Dynamo calls this once while it traces, and gets None."""
    if _recorder is None:
        return None
    torch = sys.modules.get("torch")
    tracing = torch is not None and torch._guards.TracingContext.try_get() is not None
    return None if tracing else _recorder


# What torch.compiler.assume_constant_result sets: Dynamo neither reads the function nor guards on what it read.
_listener._dynamo_marked_constant = True  # type: ignore[attr-defined]


class span:  # noqa: N801 used as a function
    """`with hotlap.span("augment"): …` or `@hotlap.span("augment")`."""

    __slots__ = ("_to", "name")

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        self._to = _listener()
        if self._to is not None:
            self._to.enter_span(self.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._to is not None:
            self._to.leave_span(self.name)

    def __call__(self, function: Function) -> Function:
        name = self.name

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            to = _listener()
            if to is not None:
                to.enter_span(name)
            try:
                return function(*args, **kwargs)  # one line for both, as a traceback shows it
            finally:
                if to is not None:
                    to.leave_span(name)

        return inside  # type: ignore[return-value]  # same signature as what it wraps

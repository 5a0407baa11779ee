"""Keeps patches out of sight of torch.compile, torch.jit.script and torch.fx.

Dynamo reads the Python that it compiles: a patched method would be traced and break the graph. TorchScript could not
read it at all, and torch.fx patches module calls itself. While one of them works, every patch is hidden, and our own
files are never compiled. Nothing here imports Dynamo, which alone takes a second.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hotlap.patch.hidden_frames import forget_functions, leave_no_frame
from hotlap.patch.imports import when_imported
from hotlap.patch.ledger import Ledger
from hotlap.patch.private_package import UNSEEN_ROOMS

SCRIPTING = "_script_impl"  # of torch.jit._script
TRACING = "trace"  # of torch.fx.Tracer
THE_USERS = "span.py"  # called from the user's own code, so it may appear in a compiled function


def keep_out(ledger: Ledger, for_good: bool = False) -> None:
    """Hide this ledger's patches while torch.compile, torch.jit.script or torch.fx works, now or once imported.

    With `for_good` the ledger is closed instead. That is for module functions: compiled code checks their identity at
    each call, so even a patch hidden in time would make Dynamo recompile again and again, and finally give up.
    """

    def dynamo_imported(_: Any) -> None:
        forget_functions()
        if not ledger.closed:
            (_leave_when_compiling if for_good else _hide_while_compiling)(ledger)

    def script_imported(module: Any) -> None:
        if not ledger.closed and hasattr(module, SCRIPTING):
            _hide_during(ledger, module, SCRIPTING)

    def fx_imported(module: Any) -> None:
        if not ledger.closed:
            _hide_during(ledger, module.Tracer, TRACING)

    when_imported("torch._dynamo", dynamo_imported)
    when_imported("torch.jit._script", script_imported)
    when_imported("torch.fx._symbolic_trace", fx_imported)


def _hide_during(ledger: Ledger, owner: Any, name: str) -> None:
    depth = 0  # a module's children are scripted within its own call

    def layer(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def hidden(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            if "_frames_up" in kwargs:  # the distance to the caller, whose names a script may use
                kwargs["_frames_up"] += 1
            depth += 1
            try:
                if depth > 1:
                    return original(*args, **kwargs)
                with ledger.hidden():
                    return original(*args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise
            finally:
                depth -= 1

        return hidden

    ledger.wrap(owner, name, layer)


def _leave_when_compiling(ledger: Ledger) -> None:
    from torch._dynamo import convert_frame
    from torch._dynamo.callback import callback_handler as handler

    def layer(original: Callable[..., Any]) -> Callable[..., Any]:
        def install_callbacks(*args: Any, **kwargs: Any) -> Any:
            try:
                ledger.close()
                return original(*args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise

        return install_callbacks

    if convert_frame.FRAME_COUNTER:  # something has been compiled already
        ledger.close()
    ledger.wrap(handler, "install_callbacks", layer)


def _hide_while_compiling(ledger: Ledger) -> None:
    from torch._dynamo import trace_rules
    from torch._dynamo.callback import callback_handler as handler

    def layer(original: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def install_callbacks(*args: Any, **kwargs: Any) -> Iterator[None]:
            with ledger.hidden(), original(*args, **kwargs):
                yield

        return install_callbacks

    # Registered callbacks would not do: torch._dynamo.reset() forgets them.
    ledger.wrap(handler, "install_callbacks", layer)
    _skip.begin(trace_rules)
    ledger.later(lambda: _skip.end(trace_rules))


class _Skip:
    """Keeps our files on Dynamo's list of files that it never compiles, while any ledger needs that.

    They are added once for all ledgers: Dynamo compiles the list to one pattern, which takes tens of milliseconds.
    """

    def __init__(self) -> None:
        self._wanted = 0
        self._files: list[str] = []

    def begin(self, trace_rules: Any) -> None:
        self._wanted += 1
        if self._wanted == 1:
            self._files = _our_files()
            trace_rules.SKIP_DIRS.extend(self._files)
            trace_rules._recompile_re()

    def end(self, trace_rules: Any) -> None:
        self._wanted -= 1
        if self._wanted == 0:
            for file in self._files:
                trace_rules.SKIP_DIRS.remove(file)
            trace_rules._recompile_re()


_skip = _Skip()


@functools.cache
def _our_files() -> list[str]:
    package = Path(__file__).parents[1]
    files = [file for room in UNSEEN_ROOMS for file in sorted((package / room).rglob("*.py"))]
    return [str(file) for file in files if file.name != THE_USERS]

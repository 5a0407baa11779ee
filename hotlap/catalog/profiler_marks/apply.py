"""Torch marks batches, dropped gradients and optimizer steps for its profiler, whether one is running or not.

A mark is entered and left through the dispatcher. While no profiler is running in any thread, and nobody looks at what
passes the dispatcher, nobody reads it; nor does a profiler that is started later show a mark that was open by then.
It is made several times a step, so what stands in is short and goes to the ledger without the guard of `site.replace`.
"""

from __future__ import annotations

import functools
import importlib
import os
from contextlib import suppress
from typing import Any

from hotlap.patch.dynamo import keep_out
from hotlap.patch.hidden_frames import leave_no_frame, unseen
from hotlap.patch.ledger import Layer
from hotlap.patch.operations import ANYWHERE, watching
from hotlap.runtime.site import Site

ARGUMENTS = (str, type(None))  # which torch takes; others are an error of the program
DAEMON = "KINETO_USE_DAEMON"  # a profiler that is started from outside, at any moment


def apply(site: Site) -> None:
    if os.environ.get(DAEMON):
        site.no_effect(f"{DAEMON} is set: a profiler may be started from outside")
    elif not hasattr(site.torch.autograd.profiler, ANYWHERE):
        site.no_effect("this torch does not tell whether a profiler runs in another thread")
    else:
        mark = site.torch.autograd.profiler.record_function
        _import_now(site.torch)
        keep_out(site.ledger)
        site.ledger.wrap(mark, "__enter__", _entering(site))
        site.ledger.wrap(mark, "_call_end_callbacks_on_future", functools.partial(_awaiting, site.torch))


def _import_now(torch: Any) -> None:
    """What newer torch imports with its first mark. The first may now be inside of a profile, which with stacks asks
    for names of code that is gone by then.
    """
    if hasattr(torch.autograd.profiler, "_maybe_cupti_monitor"):
        with suppress(Exception):  # whatever keeps it from being imported, torch meets by itself
            importlib.import_module("torch.profiler._cupti_monitor")


def _entering(site: Site) -> Layer:
    told, watched, observers = False, watching(site.torch), _observers(site)

    def layer(original: Any) -> Any:
        def __enter__(self: Any) -> Any:  # noqa: N807
            nonlocal told
            try:
                if observers or watched() or type(self.name) is not str or type(self.args) not in ARGUMENTS:
                    if self.record is None:
                        self.run_callbacks_on_exit = True
                    return original(self)
            except BaseException as error:
                leave_no_frame(error)
                raise
            if not told:
                told = True
                site.applied("marks of batches and steps, while no profiler is running")
            self.record, self.run_callbacks_on_exit = None, False  # torch's own way out then does nothing
            return self

        return __enter__

    return layer


def _awaiting(torch: Any, original: Any) -> Any:
    @unseen
    def _call_end_callbacks_on_future(self: Any, future: Any) -> Any:
        if self.record is None:  # a future is to be told of its end: so it must have begun
            self.run_callbacks_on_exit = True
            self.record = torch.ops.profiler._record_function_enter_new(self.name, self.args)
        return original(self, future)

    return _call_end_callbacks_on_future


def _observers(site: Site) -> set[int]:
    """Ids of those that take an execution trace now, which needs no profiler."""
    running: set[int] = set()

    def layer(original: Any) -> Any:
        @unseen
        @functools.wraps(original)
        def start_or_stop(self: Any) -> None:
            original(self)
            (running.add if self.is_running() else running.discard)(id(self))

        return start_or_stop

    observer = site.torch.profiler.ExecutionTraceObserver  # stops when it is dropped, so that no id stays
    site.ledger.wrap(observer, "start", layer)
    site.ledger.wrap(observer, "stop", layer)
    return running

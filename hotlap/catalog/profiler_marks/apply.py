"""Skips the marks that torch puts around batches, zero_grad and optimizer steps while no profiler is running.

A mark is entered and left through the dispatcher. While no profiler is running in any thread, and nothing observes the
dispatcher, nobody reads it; a profiler started later does not show a mark that was already open. Marks are made several
times a step, so the replacement is short and goes to the ledger without the guard of `site.replace`.
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

ARGUMENTS = (str, type(None))  # accepted by torch; others are the program's error
DAEMON = "KINETO_USE_DAEMON"  # lets a profiler be started from outside at any time


def apply(site: Site) -> None:
    if os.environ.get(DAEMON):
        site.no_effect(f"{DAEMON} is set, so a profiler may be started from outside")
    elif not hasattr(site.torch.autograd.profiler, ANYWHERE):
        site.no_effect("this version of torch does not show whether a profiler is running in another thread")
    else:
        mark = site.torch.autograd.profiler.record_function
        _import_now(site.torch)
        keep_out(site.ledger)
        site.ledger.wrap(mark, "__enter__", _entering(site))
        site.ledger.wrap(mark, "_call_end_callbacks_on_future", functools.partial(_awaiting, site.torch))


def _import_now(torch: Any) -> None:
    """Import what newer versions of torch import with the first mark. That mark may now fall inside a profile, which
    with stacks looks up names of code that is gone by then.
    """
    if hasattr(torch.autograd.profiler, "_maybe_cupti_monitor"):
        with suppress(Exception):  # torch meets any import error by itself
            importlib.import_module("torch.profiler._cupti_monitor")


def _entering(site: Site) -> Layer:
    reported, watched, observers = False, watching(site.torch), _observers(site)

    def layer(original: Any) -> Any:
        def __enter__(self: Any) -> Any:  # noqa: N807
            nonlocal reported
            try:
                if observers or watched() or type(self.name) is not str or type(self.args) not in ARGUMENTS:
                    if self.record is None:
                        self.run_callbacks_on_exit = True
                    return original(self)
            except BaseException as error:
                leave_no_frame(error)
                raise
            if not reported:
                reported = True
                site.applied("marks of batches and steps are skipped while no profiler is running")
            self.record, self.run_callbacks_on_exit = None, False  # torch's __exit__ then does nothing
            return self

        return __enter__

    return layer


def _awaiting(torch: Any, original: Any) -> Any:
    @unseen
    def _call_end_callbacks_on_future(self: Any, future: Any) -> Any:
        if self.record is None:  # a mark that ends with a future must have begun
            self.run_callbacks_on_exit = True
            self.record = torch.ops.profiler._record_function_enter_new(self.name, self.args)
        return original(self, future)

    return _call_end_callbacks_on_future


def _observers(site: Site) -> set[int]:
    """Return the live set of ids of running execution trace observers, which need no profiler."""
    running: set[int] = set()

    def layer(original: Any) -> Any:
        @unseen
        @functools.wraps(original)
        def start_or_stop(self: Any) -> None:
            original(self)
            (running.add if self.is_running() else running.discard)(id(self))

        return start_or_stop

    observer = site.torch.profiler.ExecutionTraceObserver  # stopped when freed, so that no id stays
    site.ledger.wrap(observer, "start", layer)
    site.ledger.wrap(observer, "stop", layer)
    return running

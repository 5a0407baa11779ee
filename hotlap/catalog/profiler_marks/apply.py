"""Torch marks batches, dropped gradients and optimizer steps for its profiler, whether one is running or not.

A mark is entered and left through the dispatcher. While no profiler is running in any thread, and nobody looks at what
passes the dispatcher, nobody reads it; nor does a profiler that is started later show a mark that was open by then. What
stands in here is as short as can be: it is called several times a step. It goes to the ledger without the guard of
`site.replace`, and cannot fail.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from hotlap.catalog.site import Site
from hotlap.patch.dynamo import keep_out
from hotlap.patch.operations import ANYWHERE, watching

DAEMON = "KINETO_USE_DAEMON"  # a profiler that is started from outside, at any moment


def apply(site: Site) -> None:
    if os.environ.get(DAEMON):
        site.no_effect(f"{DAEMON} is set: a profiler may be started from outside")
        return
    profiler = site.torch.autograd.profiler
    if not hasattr(profiler, ANYWHERE):
        site.no_effect("this torch does not tell whether a profiler runs in another thread")
        return
    mark, told, watched, observers = profiler.record_function, False, watching(site.torch), _observers(site)

    def entering(original: Any) -> Any:
        def __enter__(self: Any) -> Any:  # noqa: N807
            nonlocal told
            if observers or watched():
                if self.record is None:
                    self.run_callbacks_on_exit = True
                return original(self)
            if not told:
                told = True
                site.applied("marks of batches and steps, while no profiler is running")
            self.record, self.run_callbacks_on_exit = None, False  # torch's own way out then does nothing
            return self

        return __enter__

    def awaiting(original: Any) -> Any:
        def _call_end_callbacks_on_future(self: Any, future: Any) -> Any:
            if self.record is None:  # a future is to be told of its end: so it must have begun
                self.run_callbacks_on_exit = True
                self.record = site.torch.ops.profiler._record_function_enter_new(self.name, self.args)
            return original(self, future)

        return _call_end_callbacks_on_future

    keep_out(site.ledger)
    site.ledger.wrap(mark, "__enter__", entering)
    site.ledger.wrap(mark, "_call_end_callbacks_on_future", awaiting)


def _observers(site: Site) -> set[int]:
    """Ids of those that take an execution trace now, which needs no profiler."""
    running: set[int] = set()

    def layer(original: Any) -> Any:
        @functools.wraps(original)
        def start_or_stop(self: Any) -> None:
            original(self)
            (running.add if self.is_running() else running.discard)(id(self))

        return start_or_stop

    observer = site.torch.profiler.ExecutionTraceObserver  # stops when it is dropped, so that no id stays
    site.ledger.wrap(observer, "start", layer)
    site.ledger.wrap(observer, "stop", layer)
    return running

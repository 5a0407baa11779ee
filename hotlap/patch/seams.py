"""The seams of a process: the calls of a training program that others can subscribe to.

Only this package patches torch; entries never do.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from types import FrameType
from typing import Any

from hotlap.patch.dynamo import keep_out
from hotlap.patch.forks import never_free
from hotlap.patch.guard import Guard
from hotlap.patch.hidden_frames import leave_no_frame, unseen
from hotlap.patch.ledger import Ledger
from hotlap.patch.seam import Entry, Seam
from hotlap.patch.stacks import hide_from_stacks, hide_when_shown

__all__ = ["Entry", "Seam", "Seams"]


class Seams:
    """All seams of one process, on the torch that it imported."""

    def __init__(self, torch: Any, guard: Guard) -> None:
        self.torch, self.guard = torch, guard
        self.ledger = Ledger()
        self.loader_made = Seam("DataLoader made", guard)
        self.iterating = Seam("DataLoader iterated", guard)
        self.fetching = Seam("batch fetched", guard)
        self.optimizer_made = Seam("optimizer made", guard)
        self.stepping = Seam("optimizer stepped", guard)
        self.calling = Seam("root module called", guard)
        self.evaluating = Seam("model set to evaluate", guard)
        self.backward = Seam("backward called", guard)
        self.scaling = Seam("loss scaled", guard)
        self.scaled_step = Seam("scaler stepped", guard)
        self.copying = Seam("tensor copied", guard)
        self.syncing = Seam("host waits for device", guard)
        self.without_optimizer = False  # whether the program updates its weights by hand, as far as has been seen
        self.roots: set[int] = set()  # ids of the modules whose calls are seen
        self.when_silent: list[Callable[[], None]] = []  # called in a forked child that must not undo anything

    def open(self) -> None:
        """Open the seams that cost a call per step; the others open when needed."""
        torch = self.torch
        loader = torch.utils.data.DataLoader
        self._around_method(loader, "__init__", self.loader_made)
        self._around_method(loader, "__iter__", self.iterating)
        self._around_each_step(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", self.fetching)
        self._around_method(torch.optim.Optimizer, "__init__", self.optimizer_made)
        self._around_method(torch.nn.Module, "eval", self.evaluating)
        self._around_each_step(torch.autograd, "backward", self.backward)
        self._around_function(torch.autograd, "grad", self.backward)
        self._around_method(torch.amp.grad_scaler.GradScaler, "scale", self.scaling)
        self._around_method(torch.amp.grad_scaler.GradScaler, "step", self.scaled_step)
        self._open_steps()
        hide_from_stacks(self.ledger)
        hide_when_shown(self.ledger)
        keep_out(self.ledger)

    def close(self) -> None:
        self.ledger.close()

    def leave_in_child(self) -> None:
        """Close the seams in a forked child. If the parent uses CUDA, nothing may be undone: that would free memory on
        a device, which ends the process. Then everything stays in place and does nothing, and what the parent has let
        go of in cycles, such as an exception with the frames in which it was raised, is not collected either.
        """
        if not self.torch.cuda._is_in_bad_fork():
            self.close()
            return
        gc.freeze()
        never_free(self)
        for seam in vars(self).values():
            if isinstance(seam, Seam):
                seam.fall_silent()
        for mark in self.when_silent:
            mark()

    def watch_fetches_of(self, iterator: type) -> None:
        """Open the seam 'batch fetched' on a DataLoader iterator that defines its own __next__."""
        if not self.ledger.holds(iterator, "__next__"):
            self._around_each_step(iterator, "__next__", self.fetching)

    def watch_calls_of(self, module: Any) -> None:
        """Open the seam 'root module called' on a module. The patch is on its class: instances get copied and saved."""
        roots, seam = self.roots, self.calling

        def layer(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 it replaces one
                try:
                    if id(self) not in roots or (seam.brief and self.training and not seam.attended):
                        return original(self, *args, **kwargs)
                    tape = seam.tape
                    if tape is None or seam.attended or not self.training:
                        return seam.around(original.__get__(self), self, args, kwargs)
                    tape((seam.enter, perf_counter_ns(), get_ident(), None))  # the short path of a training step
                    try:
                        return original(self, *args, **kwargs)
                    finally:
                        tape((seam.leave, perf_counter_ns(), get_ident(), None))
                except BaseException as error:
                    leave_no_frame(error)
                    raise

            return __call__

        roots.add(id(module))
        if not self.ledger.holds(type(module), "__call__"):
            self.ledger.wrap(type(module), "__call__", layer)

    def unwatch_calls_of(self, module: Any) -> None:
        self.roots.discard(id(module))

    def _open_steps(self) -> None:
        hooks = StepHooks(self.torch, self.stepping, self.guard)
        hooks.open()
        self.ledger.later(hooks.close)

    def _around_function(self, owner: Any, name: str, seam: Seam) -> None:
        def layer(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                try:
                    return seam.around(original, None, args, kwargs)
                except BaseException as error:
                    leave_no_frame(error)
                    raise

            return call

        self.ledger.wrap(owner, name, layer)

    def _around_method(self, owner: type, name: str, seam: Seam) -> None:
        def layer(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                try:
                    if not args or (seam.tape is None and not seam.attended):
                        return original(*args, **kwargs)
                    return seam.around(original.__get__(args[0]), args[0], args[1:], kwargs)
                except BaseException as error:
                    leave_no_frame(error)
                    raise

            return call

        self.ledger.wrap(owner, name, layer)

    def _around_each_step(self, owner: Any, name: str, seam: Seam) -> None:
        """Wrap like _around_function, with a short path to the tape for what every step calls."""

        def layer(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                try:
                    tape = seam.tape
                    if tape is None or seam.attended:
                        return seam.around(original, args[0] if args else None, args, kwargs)
                    brief = seam.brief
                    try:
                        note = id(args[0]) if seam.note is None else seam.note(None, args, kwargs)
                        tape((seam.glance if brief else seam.enter, perf_counter_ns(), get_ident(), note))
                    except Exception as error:  # noqa: BLE001 whatever our own code raises
                        seam.stop_writing(error)
                    if brief:
                        return original(*args, **kwargs)
                    outcome = None
                    try:
                        outcome = original(*args, **kwargs)
                        return outcome
                    finally:
                        now = perf_counter_ns()
                        try:
                            note = None if seam.result is None else seam.result(args[0], outcome)
                            tape((seam.leave, now, get_ident(), note))
                        except Exception as error:  # noqa: BLE001 whatever our own code raises
                            seam.stop_writing(error)
                except BaseException as error:
                    leave_no_frame(error)
                    raise

            return call

        self.ledger.wrap(owner, name, layer)


class StepHooks:
    """Torch's global optimizer hooks. Torch iterates over them during a step and fails if one is removed meanwhile.

    So during a step ours stay, inert: the next pre-hook moves our post-hook to the end, where it may remove both.
    """

    __slots__ = ("__weakref__", "_around_step", "_closed", "_guard", "_key", "_post", "_pre", "_seam")

    def __init__(self, torch: Any, seam: Seam, guard: Guard) -> None:
        from torch.optim import optimizer

        self._seam, self._guard = seam, guard
        self._closed = False
        self._pre: Any = optimizer._global_optimizer_pre_hooks
        self._post: Any = optimizer._global_optimizer_post_hooks
        self._key = min((0, *self._pre, *self._post)) - 1  # torch counts upwards, and the program sees its next id
        self._around_step = torch.optim.Optimizer.profile_hook_step(_no_step).__code__

    def open(self) -> None:
        self._pre[self._key], self._post[self._key] = self._before, self._after

    def close(self) -> None:
        self._closed = True
        if self._steps_under_way() == 0:
            self._remove()

    @unseen
    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._closed:
            seam = self._seam
            if seam.attended:
                seam.before(optimizer)
            if seam.tape is not None:
                seam.tape((seam.enter, perf_counter_ns(), get_ident(), id(optimizer)))
        if self._closed:
            self._guard.run("removing the optimizer hooks", self._make_last)

    @unseen
    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._closed:
            seam = self._seam
            if seam.tape is not None:
                now = perf_counter_ns()
                try:
                    note = id(optimizer) if seam.result is None else seam.result(optimizer, now)
                    seam.tape((seam.leave, now, get_ident(), note))
                    seam.countdown -= 1
                    if seam.countdown <= 0 and seam.follow_up is not None:
                        seam.follow_up()
                except Exception as error:  # noqa: BLE001 whatever our own code raises
                    seam.stop_writing(error)
            if seam.attended:
                seam.after(optimizer, None)
        if self._closed:
            self._guard.run("removing the optimizer hooks", self._remove_if_last)

    def _make_last(self) -> None:
        """Move our post-hook to the end; called before the step, while nothing iterates over the post-hooks."""
        if self._steps_under_way() == 1:
            self._post.move_to_end(self._key)

    def _remove_if_last(self) -> None:
        """Remove our hooks after a step, when nothing iterates over the pre-hooks and no post-hook is left to run."""
        if self._steps_under_way() == 1 and next(reversed(self._post), None) == self._key:
            self._remove()

    def _remove(self) -> None:
        self._pre.pop(self._key, None)
        self._post.pop(self._key, None)

    def _steps_under_way(self) -> int:
        """Count the steps under way on all threads, by walking their stacks; so only called when we are leaving."""
        found = 0
        for frame in sys._current_frames().values():
            below: FrameType | None = frame
            while below is not None:
                found += below.f_code is self._around_step
                below = below.f_back
        return found


def _no_step() -> None:
    """Does nothing; profile_hook_step wraps it."""

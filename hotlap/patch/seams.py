"""The moments of a training program that others subscribe to. Only this room patches torch; entries never do.

A seam is a pair of subscriber lists around a call. Subscribers are guarded: one that fails is dropped, the call goes
on. What a seam costs when it has no subscriber is one Python call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import wrapt

from hotlap.patch.dynamo import keep_out
from hotlap.patch.guard import Guard
from hotlap.patch.ledger import Ledger

Subscriber = Callable[..., None]


class Seam:
    """before(*what) and after(*what, outcome) of one kind of call. The outcome of a failed call is None."""

    __slots__ = ("_after", "_before", "_guard", "instead", "name")

    def __init__(self, name: str, guard: Guard) -> None:
        self.name = name
        self.instead: Callable[..., Any] | None = None  # stands in for the call: instead(wrapped, *what)
        self._guard = guard
        self._before: list[Subscriber] = []
        self._after: list[Subscriber] = []

    def subscribe(self, before: Subscriber | None = None, after: Subscriber | None = None) -> None:
        if before is not None:
            self._before.append(before)
        if after is not None:
            self._after.append(after)

    def before(self, *what: Any) -> None:
        for subscriber in self._before:
            try:
                subscriber(*what)
            except Exception as error:  # noqa: BLE001 whatever our own code raises
                self._drop(subscriber, error)

    def after(self, *what: Any) -> None:
        for subscriber in self._after:
            try:
                subscriber(*what)
            except Exception as error:  # noqa: BLE001 whatever our own code raises
                self._drop(subscriber, error)

    def _drop(self, subscriber: Subscriber, error: Exception) -> None:
        self._before = [one for one in self._before if one is not subscriber]
        self._after = [one for one in self._after if one is not subscriber]
        name = getattr(subscriber, "__qualname__", repr(subscriber))
        self._guard.failed(f"{name} at the seam '{self.name}'", error)


class Seams:
    """All seams of one process, opened on the torch that was imported."""

    def __init__(self, torch: Any, guard: Guard) -> None:
        self.torch, self.guard = torch, guard
        self.ledger = Ledger()
        self.loader_made = Seam("DataLoader made", guard)
        self.iterating = Seam("DataLoader iterated", guard)
        self.fetching = Seam("batch fetched", guard)
        self.optimizer_made = Seam("optimizer made", guard)
        self.clearing = Seam("gradients cleared", guard)
        self.stepping = Seam("optimizer stepped", guard)
        self.calling = Seam("root module called", guard)
        self.backward = Seam("backward called", guard)
        self.scaling = Seam("loss scaled", guard)
        self.scaled_step = Seam("scaler stepped", guard)
        self.copying = Seam("tensor copied", guard)
        self.syncing = Seam("host waits for device", guard)

    def open(self) -> None:
        """The seams that cost a call per step. The others open when someone needs them."""
        torch = self.torch
        loader = torch.utils.data.DataLoader
        self._around(loader, "__init__", self.loader_made)
        self._around(loader, "__iter__", self.iterating)
        self._around(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", self.fetching)
        self._around(torch.optim.Optimizer, "__init__", self.optimizer_made)
        self._around(torch.optim.Optimizer, "zero_grad", self.clearing)
        self._around(torch.autograd, "backward", self.backward)
        self._around(torch.autograd, "grad", self.backward)
        self._around(torch.amp.grad_scaler.GradScaler, "scale", self.scaling)
        self._around(torch.amp.grad_scaler.GradScaler, "step", self.scaled_step)
        self._open_steps()
        keep_out(self.ledger)

    def close(self) -> None:
        self.ledger.close()

    def watch_calls_of(self, module: Any) -> None:
        """Open the seam 'root module called' on a module's class; subscribers tell instances apart."""
        seam = self.calling

        def layer(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 it stands in for one
                seam.before(self, args, kwargs)
                result = None
                try:
                    result = original(self, *args, **kwargs)
                    return result
                finally:
                    seam.after(self, args, kwargs, result)

            return __call__

        self.ledger.wrap(type(module), "__call__", layer)

    def unwatch_calls_of(self, module: Any) -> None:
        self.ledger.release(type(module), "__call__")

    def _open_steps(self) -> None:
        hooks = StepHooks(self.torch, self.stepping, self.guard)
        hooks.open()
        self.ledger.later(hooks.close)

    def _around(self, owner: Any, name: str, seam: Seam) -> None:
        def wrapper(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            seam.before(instance, args, kwargs)
            result = None
            try:
                if seam.instead is None:
                    result = wrapped(*args, **kwargs)
                else:
                    result = seam.instead(wrapped, instance, args, kwargs)
                return result
            finally:
                seam.after(instance, args, kwargs, result)

        self.ledger.wrap(owner, name, lambda original: wrapt.FunctionWrapper(original, wrapper))


class StepHooks:
    """Torch's global optimizer hooks. Torch iterates over them during a step and fails if one is removed meanwhile.

    So a step under way keeps ours, inert: the next pre-hook moves our post-hook to the end, where it may remove both.
    """

    def __init__(self, torch: Any, seam: Seam, guard: Guard) -> None:
        self._seam, self._guard = seam, guard
        self._closed = False
        self._handles: list[Any] = []
        self._around_step = torch.optim.Optimizer.profile_hook_step(_no_step).__code__

    def open(self) -> None:
        from torch.optim import optimizer as optim

        self._handles.append(optim.register_optimizer_step_pre_hook(self._before))
        self._handles.append(optim.register_optimizer_step_post_hook(self._after))

    def close(self) -> None:
        self._closed = True
        if self._steps_under_way() == 0:
            self._remove()

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._closed:
            self._seam.before(optimizer)
        if self._closed:
            self._guard.run("leaving the optimizer's hooks", self._make_last)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._closed:
            self._seam.after(optimizer, None)
        if self._closed:
            self._guard.run("leaving the optimizer's hooks", self._remove_if_last)

    def _make_last(self) -> None:
        """Called before the step, while nobody iterates over the post-hooks."""
        if self._steps_under_way() == 1:
            post = self._handles[1]
            post.hooks_dict_ref().move_to_end(post.id)

    def _remove_if_last(self) -> None:
        """Called after the step, while nobody iterates over the pre-hooks, and of the post-hooks none is left."""
        post = self._handles[1]
        if self._steps_under_way() == 1 and next(reversed(post.hooks_dict_ref()), None) == post.id:
            self._remove()

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _steps_under_way(self) -> int:
        """On all threads; a walk over their stacks, so only asked once we are to go."""
        found = 0
        for frame in sys._current_frames().values():
            below: FrameType | None = frame
            while below is not None:
                found += below.f_code is self._around_step
                below = below.f_back
        return found


def _no_step() -> None:
    """For profile_hook_step to wrap."""

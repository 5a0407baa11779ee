"""The user's own loss function, captured for each kind of arguments it is called with.

A detector's loss launches a thousand small kernels for a ragged list of targets and takes more host time than the model
before it. The function is replaced in the modules that refer to it; calls that match no capture run unchanged.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from hotlap.catalog.cuda_graphs.inputs import kinds_of
from hotlap.catalog.cuda_graphs.losses import Losses
from hotlap.catalog.cuda_graphs.parts import Whole
from hotlap.catalog.cuda_graphs.purity import Constants
from hotlap.catalog.cuda_graphs.recorded_function import RecordedFunction, SharedMemory
from hotlap.catalog.cuda_graphs.watch import NamedFunction, Watch
from hotlap.patch.signals import comes_from_outside
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.forwards import MISSING

WATCHED = 4  # replays of the root before a step is watched …
WATCHES = 2  # … at most this many times if no function is found
KINDS = 128  # kinds of arguments, each with its own capture; they share memory
MOST_SEEN = 4 * KINDS  # kinds; with fewer replays, an argument such as the step number is part of the kind
FASTER = 0.8  # of the eager host time: below that a capture is worth its memory
TRIED = 8  # replays before that is checked


class Functions:
    def __init__(self, graphs: Whole, losses: Losses) -> None:
        self._losses = losses
        self._graphs, self._torch = graphs, graphs.torch
        self._watch: Watch | None = None
        self._replays = self._watches = 0
        self._known: list[Calls] = []

    def __str__(self) -> str:
        done = "".join(f" and of {calls.name}" for calls in self._known if calls.recorded)
        return done + "".join(f"; {name} stays eager ({why})" for name, why in self.why_not.items())

    @property
    def why_not(self) -> dict[str, str]:
        """Return, by function name, why it is not replayed."""
        return {calls.name: calls.why_not for calls in self._known if calls.why_not is not None}

    def root_replayed(self) -> None:
        self._replays += 1
        if self._watch is not None:
            self._end()
        if self._known or self._replays < WATCHED or self._watches >= WATCHES or self._losses.recorded:
            return
        watch = Watch(self._torch)
        self._watches += 1
        if watch.begin():
            self._watch = watch

    def backward_begins(self) -> None:
        if self._watch is not None:
            self._end()

    def _end(self) -> None:
        watch, self._watch = self._watch, None
        for place in watch.end() if watch is not None else ():
            self._replace(place)

    def _replace(self, place: NamedFunction) -> None:
        calls = Calls(self._graphs, place)
        self._known.append(calls)
        if calls.why_not is not None:
            self._graphs.tell()
            return
        for module, name in place.held:
            self._graphs.site.replace(module, name, calls)

    def drop(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None
        for calls in self._known:
            calls.drop()


class Calls:
    """The calls of one function."""

    def __init__(self, graphs: Whole, place: NamedFunction) -> None:
        self._graphs, self._torch = graphs, graphs.torch
        self._function, self.name = place.function, place.function.__name__
        self.why_not: str | None = None
        self._recorded: dict[Any, RecordedFunction] = {}
        self._seen: set[Any] = set()
        self._shared = SharedMemory(graphs.torch, graphs.recorder)
        self._plainly = self._replayed = float("inf")  # least host seconds seen for a forward, eager and replayed
        self._replays = 0
        try:
            self._constants = Constants(graphs.torch, place.function)
        except EntryDeclined as refusal:
            self.why_not = str(refusal)

    @property
    def recorded(self) -> int:
        return len(self._recorded)

    def __call__(self, original: Any, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.why_not is not None or self._graphs.graphed is None or not self._torch.is_grad_enabled():
            return original(*args, **kwargs)
        found = self._guarded(partial(original, *args, **kwargs), args, kwargs)
        return original(*args, **kwargs) if found is MISSING else found

    def _guarded(self, plainly: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self._outcome(plainly, args, kwargs)
        except EntryDeclined as refusal:
            self._give_up(str(refusal))
        except Exception as error:
            if plainly.func.error is error or self._graphs.site.seams.guard.strict or comes_from_outside(error):
                raise
            self._give_up(f"capturing it failed: {type(error).__name__}: {error}")
        return MISSING

    def _outcome(self, plainly: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        begun = time.perf_counter()
        leaves, shape = self._torch.utils._pytree.tree_flatten((args, kwargs))
        kinds = kinds_of(self._torch, leaves, self._graphs.recorder.device_type, differentiated=True)
        if kinds is None:
            raise EntryDeclined("its arguments cannot be captured")
        self._still_fits()
        key = (str(shape) if kwargs else len(args), tuple(kinds))
        recorded = self._recorded.get(key)
        if recorded is None or not recorded.is_for(shape):
            if key not in self._seen or recorded is not None or len(self._recorded) >= KINDS or self._shared.under_way:
                return self._first(key, plainly)
            recorded = self._record(key, args, kwargs)
        if self._shared.under_way:
            return MISSING  # the backward of another call still needs the shared memory
        outcome = recorded(leaves)
        self._replays += 1
        self._replayed = min(self._replayed, time.perf_counter() - begun)
        return outcome

    def _still_fits(self) -> None:
        if not self._constants.hold():
            raise EntryDeclined("what it reads has changed")
        if len(self._seen) > MOST_SEEN and self._replays < len(self._seen):
            raise EntryDeclined("its arguments are of a different kind at each call")
        if self._replays >= TRIED and self._replayed > FASTER * self._plainly:
            raise EntryDeclined("replaying it takes the host as long as computing it")

    def _first(self, key: Any, plainly: Any) -> Any:
        """Run the first call of its kind eagerly and time it."""
        self._seen.add(key)
        begun = time.perf_counter()
        outcome = plainly()
        self._plainly = min(self._plainly, time.perf_counter() - begun)
        return outcome

    def _record(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedFunction:
        root = self._graphs.graphed
        assert root is not None
        before = [tensor._version for tensor in self._constants.tensors]
        recorded = RecordedFunction(self._shared, root, self._function, args, kwargs)
        if before != [tensor._version for tensor in self._constants.tensors]:
            recorded.forget()
            raise EntryDeclined("it writes into a tensor that is not an argument")
        self._recorded[key] = recorded
        self._graphs.tell()
        return recorded

    def _give_up(self, why: str) -> None:
        self.why_not = why
        self.drop()
        self._graphs.tell()

    def drop(self) -> None:
        recorded, self._recorded = self._recorded, {}
        self._seen.clear()
        for recording in recorded.values():
            recording.forget()
        self._shared.forget()

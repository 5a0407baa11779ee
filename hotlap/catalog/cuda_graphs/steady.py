"""Small work on the device, done the same way at each step: an optimizer's step, a clipping of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import unwrap
from operator import attrgetter
from typing import Any

from hotlap.catalog.cuda_graphs.recorder import Recorder, Recording

MOST_PATIENCE = 64

_gradient: Any = attrgetter("grad")


class Steady:
    """Recorded once it was asked for twice in the same way, and replayed for as long as it stays that way.

    The key holds all that the recording took for granted: addresses, and every number that is part of it. A number
    that changes now and then (a learning rate by epoch) is recorded anew; the more often, the longer it must stay.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._recording: Recording | None = None
        self._key: Any = None
        self._last: Any = None
        self._repeated = 0
        self._patience = 1

    @property
    def recorded(self) -> bool:
        return self._recording is not None

    def is_for(self, key: Any) -> bool:
        if self._recording is None:
            return False
        if key is not self._key:
            if key != self._key:
                return False
            self._key = key  # asked again with this very key, it is not compared once more
        return True

    def ready(self, key: Any) -> bool:
        """To be asked once for each time the work is due; where it is not ready, the work is done without us."""
        if self.is_for(key):
            return True
        self._repeated = self._repeated + 1 if key == self._last else 0
        self._last = key
        return self._repeated >= self._patience

    def replay(self, key: Any, work: Callable[[], Any]) -> Any:
        if not self.is_for(key):
            self._record(key, work)
        assert self._recording is not None
        self._recording.replay()
        return self._recording.outcome

    def _record(self, key: Any, work: Callable[[], Any]) -> None:
        if self._recording is not None:
            self._patience = min(MOST_PATIENCE, 2 * self._patience)
        self.forget()
        self._recording, self._key = self._recorder.record(work), key

    def forget(self) -> None:
        if self._recording is not None:
            self._recording.forget()
        self._recording = self._last = None
        self._repeated = 0


def state_of(optimizer: Any) -> list[Any]:
    """What it keeps for its parameters: moments, counts of steps."""
    return [one for state in optimizer.state.values() for one in state.values()]


def key_of_step(torch: Any, optimizer: Any) -> list[Any]:
    """With what a recording holds on to by `state_of`: as long as it does, no other object has the same id."""
    key: list[Any] = [id(optimizer), *map(id, state_of(optimizer))]
    for group in optimizer.param_groups:
        for name, value in group.items():
            if name != "params":
                key.append(value.data_ptr() if type(value) is torch.Tensor else value)
        key.append(len(group))
        key += addresses(torch, group["params"])
    return key


def addresses(torch: Any, parameters: list[Any]) -> list[int]:
    """Of the parameters, then of their gradients."""
    address, gradients = torch.Tensor.data_ptr, list(map(_gradient, parameters))
    try:
        return [*map(address, parameters), *map(address, gradients)]
    except TypeError:  # one has no gradient
        return [*map(address, parameters), *(0 if one is None else address(one) for one in gradients)]


def step_of(torch: Any, optimizer: Any) -> Callable[[], None]:
    """The bare step: neither hooks nor a scheduler's count, which run around it in any case."""
    bare = unwrap(type(optimizer).step)

    def work() -> None:
        with torch.no_grad(), _capturable(optimizer):
            bare(optimizer)

    return work


@contextmanager
def _capturable(optimizer: Any) -> Iterator[None]:
    """Torch asks for this flag while recording. Of a fused step and of SGD it changes nothing else."""
    groups = [group for group in optimizer.param_groups if "capturable" in group]
    before = [group["capturable"] for group in groups]
    for group in groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group, value in zip(groups, before, strict=True):
            group["capturable"] = value

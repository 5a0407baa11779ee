"""Small work on the device, done the same way at each step: an optimizer's step, the clipping of gradients."""

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
    """Captures work once it is requested twice with the same key, and replays it for as long as the key stays the same.

    The key holds all that the capture assumes: addresses, and every number that is part of it. After a number changes
    (a learning rate by epoch), the work is captured again; the more often it changes, the longer it must first stay.
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
            self._key = key  # the same object is not compared a second time
        return True

    def ready(self, key: Any) -> bool:
        """Return whether to replay, else the work runs eagerly. Call it once each time the work is due."""
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
    """Return what the optimizer keeps for its parameters: averages of gradients, step counts."""
    return [value for state in optimizer.state.values() for value in state.values()]


def key_of_step(torch: Any, optimizer: Any) -> list[Any]:
    """Return the key of a step. Its ids are unique, since a capture holds what `state_of` returns."""
    key: list[Any] = [id(optimizer), *map(id, state_of(optimizer))]
    for group in optimizer.param_groups:
        for name, value in group.items():
            if name != "params":
                key.append(value.data_ptr() if type(value) is torch.Tensor else value)
        key.append(len(group))
        key += addresses(torch, group["params"])
    return key


def addresses(torch: Any, parameters: list[Any]) -> list[int]:
    """Return the addresses of the parameters, then of their gradients."""
    address, gradients = torch.Tensor.data_ptr, list(map(_gradient, parameters))
    try:
        return [*map(address, parameters), *map(address, gradients)]
    except TypeError:  # one has no gradient
        return [*map(address, parameters), *(0 if gradient is None else address(gradient) for gradient in gradients)]


def step_of(torch: Any, optimizer: Any) -> Callable[[], None]:
    """Return the bare step, without the hooks and the scheduler's count, which run around it in any case."""
    bare = unwrap(type(optimizer).step)
    to_be_captured = _counted_apart if counts_of(torch, optimizer) else _capturable

    def work() -> None:
        with torch.no_grad(), to_be_captured(optimizer):
            bare(optimizer)

    return work


def counts_of(torch: Any, optimizer: Any) -> list[Any]:
    """Return the counts of steps that lie on the host and change nothing else, of the parameters that have a gradient:
    a replay does not raise them. Fused optimizers count on the device.
    """
    if type(optimizer) not in (torch.optim.RMSprop, torch.optim.Adadelta, torch.optim.Adagrad):
        return []
    stepped = (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
    counts = [optimizer.state[parameter]["step"] for parameter in stepped]
    return [count for count in counts if count.is_cpu]


@contextmanager
def _counted_apart(optimizer: Any) -> Iterator[None]:
    """Count on copies, and pass torch's check: it asks for counts on the device, which here change nothing."""
    counts = [(state, state["step"]) for state in optimizer.state.values() if "step" in state]
    checks = [name for name in dir(optimizer) if name.endswith("_graph_capture_health_check")]
    for state, count in counts:
        state["step"] = count.clone()
    for name in checks:
        setattr(optimizer, name, lambda: None)
    try:
        yield
    finally:
        for state, count in counts:
            state["step"] = count
        for name in checks:
            delattr(optimizer, name)


@contextmanager
def _capturable(optimizer: Any) -> Iterator[None]:
    """Set the flag that torch requires while capturing. It changes nothing else in a fused step or in SGD."""
    groups = [group for group in optimizer.param_groups if "capturable" in group]
    before = [group["capturable"] for group in groups]
    for group in groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group, value in zip(groups, before, strict=True):
            group["capturable"] = value

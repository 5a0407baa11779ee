"""What a captured graph assumes of a module, checked at each call, and the side effects of a forward."""

from __future__ import annotations

import copy
from operator import attrgetter, is_
from typing import Any

from hotlap.catalog.cuda_graphs.rules import why_not_hooks
from hotlap.runtime.attributes import CONTAINERS, holds_the_same, refill
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.executed_stores import ExecutedStores
from hotlap.runtime.forward_reads import Readings
from hotlap.runtime.host_streams import HostStreams
from hotlap.runtime.recomputed_weights import recomputed_names

PLAIN = (int, float, bool, str, type(None))
FOR_GOOD = 3  # calls in a row

_trained: Any = attrgetter("requires_grad")
_training: Any = attrgetter("training")


class Assumptions:
    """Checks that modules have the same tensors at the same addresses and the same mode, and all else they read too.

    The check runs at each step, so it avoids Python loops, which take twice as long.
    """

    def __init__(self, torch: Any, module: Any, forward: Any) -> None:
        self._torch = torch
        self._handles = torch.utils.hooks.RemovableHandle
        self._handles_made = self._handles.next_id  # torch counts the hooks registered anywhere
        self._children = list(module.modules())[1:]  # not the root itself, which the user must be able to free
        modules = module.modules()
        self._holders = [
            held for submodule in modules for held in (submodule._parameters, submodule._buffers, submodule._modules)
        ]
        self._sizes = list(map(len, self._holders))
        places = [(held, name, value) for held in self._holders for name, value in held.items()]
        self._places, self._names, self._held = ([place[n] for place in places] for n in range(3))
        self._tensors = [value for value in self._held if isinstance(value, torch.Tensor)]
        self._address = torch.Tensor.data_ptr
        self._function = getattr(forward, "__func__", forward)
        self._readings = Readings(torch, module)
        if self._readings.why_not_watched is not None:
            raise EntryDeclined(self._readings.why_not_watched)
        self._mode = self._now(module)
        self._other, self._times = self._mode, 0  # another mode it was seen in, and how many times in a row

    def _now(self, module: Any) -> list[Any]:
        tensors = self._tensors
        return [*map(self._address, tensors), *map(_trained, tensors), *map(_training, self._children), module.training]

    def stores(self) -> ExecutedStores:
        """Return what sees whether forward sets something that a replay would not, and that is not seen otherwise."""
        return ExecutedStores(self._readings.stores)

    def check_rehearsed(self) -> None:
        """Decline if the first run of forward has changed what it reads."""
        if not self._readings.hold():
            changed = self._readings.changed()
            self._readings.put_back()
            raise EntryDeclined(f"forward changes {changed}, which a replay would not")

    def holds(self, module: Any, forward: Any) -> bool:
        if getattr(forward, "__func__", forward) is not self._function or not self.is_held():
            return False
        if self._handles.next_id != self._handles_made:
            if why_not_hooks(self._torch, module) is not None:
                return False
            self._handles_made = self._handles.next_id
        now = self._now(module)
        if now == self._mode and self._readings.hold():
            self._times = 0
            return True
        self._other, self._times = now, self._times + 1 if now == self._other else 1
        return False

    @property
    def is_over(self) -> bool:
        """Whether the modules have settled in another mode: a part was frozen or unfrozen."""
        return self._times >= FOR_GOOD

    def is_held(self) -> bool:
        """Whether the modules hold the same tensors and modules under the same names, and no others."""
        found = map(dict.get, self._places, self._names)
        return list(map(len, self._holders)) == self._sizes and all(map(is_, found, self._held))


class Traces:
    """Remembers module attributes and the host's random streams: a forward that changes them cannot be replayed."""

    def __init__(self, torch: Any, module: Any, own_stream: bool) -> None:
        self._torch, self._module = torch, module
        self._own_stream = own_stream  # the device has a random stream of its own
        self._attributes = [
            (held, dict(held)) for submodule in module.modules() for held in (vars(submodule), submodule._buffers)
        ]
        self._contents = [
            (value, copy.copy(value))
            for _, held in self._attributes
            for value in held.values()
            if isinstance(value, CONTAINERS)
        ]
        self._recomputed = {id(vars(submodule)): recomputed_names(submodule) for submodule in module.modules()}
        self._streams, self._of_torch = HostStreams(), torch.get_rng_state()

    def why_not(self) -> str | None:
        for held, names in self._attributes:
            for name in {*held, *names} - self._recomputed.get(id(held), frozenset()):
                if name not in held or name not in names or not _same(held[name], names[name]):
                    return f"forward changes the attribute {name} of the module, which a replay would not"
        if not all(holds_the_same(value, before) for value, before in self._contents):
            return "forward changes a list or dictionary of the module, which a replay would not"
        drawn = self._own_stream and not self._torch.equal(self._torch.get_rng_state(), self._of_torch)
        if drawn or self._streams.have_moved():
            return "forward draws random numbers on the host"
        return None

    def put_back(self) -> None:
        """Undo what this forward counted or stored: the program did not request it."""
        for held, names in self._attributes:
            held.update(names)
            for name in held.keys() - names.keys():
                del held[name]
        for value, before in self._contents:
            refill(value, before)
        self._streams.put_back()
        self._torch.set_rng_state(self._of_torch)


def _same(value: Any, before: Any) -> bool:
    return value is before or (isinstance(value, PLAIN) and type(value) is type(before) and bool(value == before))


class Snapshot:
    """A snapshot of the buffers and of the device's random stream, taken before forward is tried."""

    def __init__(self, torch: Any, recorder: Any, module: Any) -> None:
        self._torch, self._recorder = torch, recorder
        self._random = recorder.random_state()
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
        preserved, buffers = torch.autograd._unsafe_preserve_version_counter, module.buffers()
        self._versions = [preserved(buffer) for buffer in buffers if not buffer.is_inference()]

    def put_back(self) -> None:
        """Restore them without raising their versions: a forward that awaits its backward may have saved them."""
        self._recorder.set_random_state(self._random)
        with self._torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        for version in self._versions:
            version.__exit__(None, None, None)

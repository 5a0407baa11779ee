"""What a recording takes for granted of a module, checked at each call; and what a forward leaves behind besides."""

from __future__ import annotations

import random
import sys
from operator import attrgetter, is_
from typing import Any

from hotlap.catalog.cuda_graphs.rules import Refused
from hotlap.catalog.readings import Readings

PLAIN = (int, float, bool, str, type(None))
SIZED = (list, dict, set)
FOR_GOOD = 3  # calls in a row

_trained: Any = attrgetter("requires_grad")
_training: Any = attrgetter("training")


class Standing:
    """The same tensors at the same addresses in the same modules, in the same mode, and the same of all else it reads.

    Asked at each step, so without Python's own loops: they take twice as long.
    """

    def __init__(self, torch: Any, module: Any, forward: Any) -> None:
        self._children = list(module.modules())[1:]  # the root itself may go when the user lets it go
        modules = module.modules()
        self._holders = [held for one in modules for held in (one._parameters, one._buffers, one._modules)]
        self._sizes = list(map(len, self._holders))
        places = [(held, name, one) for held in self._holders for name, one in held.items()]
        self._places, self._names, self._held = ([place[n] for place in places] for n in range(3))
        self._tensors = [one for one in self._held if isinstance(one, torch.Tensor)]
        self._address = torch.Tensor.data_ptr
        self._function = getattr(forward, "__func__", forward)
        self._readings = Readings(torch, module)
        if self._readings.why_not is not None:
            raise Refused(self._readings.why_not)
        self._mode = self._now(module)
        self._other, self._times = self._mode, 0  # another mode it was found in, and how many times in a row

    def _now(self, module: Any) -> list[Any]:
        tensors = self._tensors
        return [*map(self._address, tensors), *map(_trained, tensors), *map(_training, self._children), module.training]

    def check_rehearsed(self) -> None:
        """After forward has run once."""
        if not self._readings.hold():
            raise Refused(f"forward changes {self._readings.changed()}, which a replay would not")

    def holds(self, module: Any, forward: Any) -> bool:
        if getattr(forward, "__func__", forward) is not self._function or not self.is_held():
            return False
        now = self._now(module)
        if now == self._mode and self._readings.hold():
            self._times = 0
            return True
        self._other, self._times = now, self._times + 1 if now == self._other else 1
        return False

    @property
    def is_over(self) -> bool:
        """The same modules train in another mode for good: a part was frozen, or is no longer."""
        return self._times >= FOR_GOOD

    def is_held(self) -> bool:
        """The same tensors and modules under the same names, and no others."""
        found = map(dict.get, self._places, self._names)
        return list(map(len, self._holders)) == self._sizes and all(map(is_, found, self._held))


class Traces:
    """Attributes of the modules and random streams of the host: a forward that changes them cannot be replayed."""

    def __init__(self, torch: Any, module: Any, own_stream: bool) -> None:
        self._torch, self._module = torch, module
        self._own_stream = own_stream  # the device has a random stream of its own
        self._attributes = self._look()
        self._streams = (random.getstate(), self._numpy(), torch.get_rng_state())

    def why_not(self) -> str | None:
        now = self._look()
        for key in {*now, *self._attributes}:
            if key not in now or key not in self._attributes or not _same(now[key], self._attributes[key]):
                return f"forward changes the attribute {key[1]} of the module, which a replay would not"
        python, _, host = self._streams
        drawn = repr(self._numpy()) != repr(self._streams[1]) or random.getstate() != python
        if drawn or (self._own_stream and not self._torch.equal(self._torch.get_rng_state(), host)):
            return "forward draws random numbers on the host"
        return None

    def put_back(self) -> None:
        random.setstate(self._streams[0])
        self._torch.set_rng_state(self._streams[2])
        if self._streams[1] is not None:
            sys.modules["numpy"].random.set_state(self._streams[1])

    def _numpy(self) -> Any:
        numpy = sys.modules.get("numpy")
        return None if numpy is None else numpy.random.get_state()

    def _look(self) -> dict[tuple[int, str], tuple[Any, int]]:
        found = {}
        for number, child in enumerate(self._module.modules()):
            for name, value in vars(child).items():
                found[number, name] = (value, len(value) if isinstance(value, SIZED) else 0)
            for name, value in child._buffers.items():
                found[number, f"buffer {name}"] = (value, 0)
        return found


def _same(one: tuple[Any, int], other: tuple[Any, int]) -> bool:
    if one[1] != other[1]:
        return False
    if isinstance(one[0], PLAIN):
        return type(one[0]) is type(other[0]) and bool(one[0] == other[0])
    return one[0] is other[0]


class Kept:
    """Buffers and the device's random stream, as they were before forward was tried."""

    def __init__(self, torch: Any, recorder: Any, module: Any) -> None:
        self._torch, self._recorder = torch, recorder
        self._random = recorder.random_state()
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
        preserved, buffers = torch.autograd._unsafe_preserve_version_counter, module.buffers()
        self._versions = [preserved(buffer) for buffer in buffers if not buffer.is_inference()]

    def put_back(self) -> None:
        """Autograd does not take them for changed: a forward that waits for its backward may have saved them."""
        self._recorder.set_random_state(self._random)
        with self._torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        for one in self._versions:
            one.__exit__(None, None, None)

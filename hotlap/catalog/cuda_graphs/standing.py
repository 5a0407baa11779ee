"""What a recording takes for granted of a module, checked at each call; and what a forward leaves behind besides."""

from __future__ import annotations

import random
import sys
from typing import Any

PLAIN = (int, float, bool, str, type(None))
SIZED = (list, dict, set)
FOR_GOOD = 3  # calls in a row


class Standing:
    """The same tensors at the same addresses in the same modules, in the same mode."""

    def __init__(self, torch: Any, module: Any, forward: Any) -> None:
        self._children = list(module.modules())[1:]  # the root itself may go when the user lets it go
        holders = [held for child in module.modules() for held in (child._parameters, child._buffers, child._modules)]
        self._sizes = [(held, len(held)) for held in holders if held]
        self._held = [(held, name, one) for held in holders for name, one in held.items()]
        self._tensors = [one for _, _, one in self._held if isinstance(one, torch.Tensor)]
        self._address = torch.Tensor.data_ptr
        self._function = getattr(forward, "__func__", forward)
        self._mode = self._now(module)
        self._other, self._times = self._mode, 0  # another mode it was found in, and how many times in a row

    def _now(self, module: Any) -> list[Any]:
        mode: list[Any] = list(map(self._address, self._tensors))
        mode += [one.requires_grad for one in self._tensors]
        mode += [child.training for child in self._children]
        mode.append(module.training)
        return mode

    def holds(self, module: Any, forward: Any) -> bool:
        if getattr(forward, "__func__", forward) is not self._function or not self._is_held():
            return False
        now = self._now(module)
        if now == self._mode:
            self._times = 0
            return True
        self._other, self._times = now, self._times + 1 if now == self._other else 1
        return False

    @property
    def is_over(self) -> bool:
        """The same modules train in another mode for good: a part was frozen, or is no longer."""
        return self._times >= FOR_GOOD

    def _is_held(self) -> bool:
        for held, size in self._sizes:
            if len(held) != size:
                return False
        return all([held.get(name) is one for held, name, one in self._held])  # noqa: C419 a list is faster


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

    def put_back(self) -> None:
        self._recorder.set_random_state(self._random)
        with self._torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)

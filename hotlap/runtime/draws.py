"""The random numbers that a stretch of torch operations draws, and the positions of its streams before and after.

A generator fills memory in memory order. So the result of a drawing operation depends on the layout of its tensors as
well as on their shape: the same dropout in channels-last format drops other elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Draw = tuple[Any, ...]  # the operation, its tensors, and whether its generator was the program's own


@contextmanager
def recorded_draws(torch: Any) -> Iterator[list[Draw]]:
    """Record every drawing operation of this thread, in order. Slow: for rehearsals only."""
    from torch.utils import _python_dispatch

    found: list[Draw] = []
    mode: Any = _python_dispatch.TorchDispatchMode  # its own functions have no types

    class Recording(mode):  # type: ignore[misc]
        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            outcome = operation(*args, **(kwargs or {}))
            if torch.Tag.nondeterministic_seeded in operation.tags:
                found.append(_draw(torch, operation, (args, kwargs, outcome)))
            return outcome

    with Recording():
        yield found


def _draw(torch: Any, operation: Any, met: Any) -> Draw:
    from torch.utils._pytree import tree_leaves

    leaves = tree_leaves(met)
    tensors = tuple(
        (leaf.device, leaf.dtype, tuple(leaf.shape), _order(leaf)) for leaf in leaves if isinstance(leaf, torch.Tensor)
    )
    return str(operation), tensors, any(isinstance(leaf, torch.Generator) for leaf in leaves)


def has_own_generator(draws: list[Draw]) -> bool:
    return any(draw[2] for draw in draws)


def _order(tensor: Any) -> tuple[int, ...]:
    """Return the strides without those of dimensions of size 1, which mean nothing."""
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1)


class Position:
    """The positions of torch's streams, of the host and the given devices; read on the host, so nothing waits."""

    def __init__(self, torch: Any, devices: tuple[int, ...]) -> None:
        self._torch = torch
        self._generators = [torch.cuda.default_generators[number] for number in devices]
        self._host = torch.default_generator.get_state()
        self._devices = [(generator.initial_seed(), generator.get_offset()) for generator in self._generators]

    def distance(self) -> tuple[Any, ...]:
        """Return how far each stream has moved: on the host whether it has, on a device by how much."""
        host = not self._torch.equal(self._torch.default_generator.get_state(), self._host)
        moved = [
            generator.get_offset() - offset if generator.initial_seed() == seed else None
            for generator, (seed, offset) in zip(self._generators, self._devices, strict=True)
        ]
        return host, *moved

    def put_back(self) -> None:
        self._torch.default_generator.set_state(self._host)
        for generator, (seed, offset) in zip(self._generators, self._devices, strict=True):
            if generator.initial_seed() != seed:
                generator.manual_seed(seed)
            generator.set_offset(offset)


def cuda_devices(module: Any) -> tuple[int, ...]:
    return tuple(sorted({parameter.device.index for parameter in module.parameters() if parameter.is_cuda}))


class Buffers:
    """Copies of a module's buffers, which a forward may write; copying takes a launch or two for all of them."""

    def __init__(self, torch: Any, module: Any) -> None:
        self._torch = torch
        kinds: dict[Any, list[Any]] = {}
        for buffer in module.buffers():
            kinds.setdefault((buffer.device, buffer.dtype), []).append(buffer)
        self._kinds = [(buffers, [buffer.detach().clone() for buffer in buffers]) for buffers in kinds.values()]

    def hold(self) -> None:
        self._copy(lambda buffers, held: (held, buffers))

    def put_back(self) -> None:
        self._copy(lambda buffers, held: (buffers, held))

    def _copy(self, to_from: Any) -> None:
        with self._torch.no_grad():
            for kind in self._kinds:
                self._torch._foreach_copy_(*to_from(*kind))

"""Runs a root module once more on its own input without a trace, to prove a change before it is made for real.

Afterwards random states, buffers, module attributes and gradients are as before, and nothing has been printed. It costs
one forward and backward pass and a copy of the gradients, once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import unwrap
from typing import Any

from hotlap.loading.generators import access
from hotlap.runtime.attributes import Attributes
from hotlap.runtime.host_streams import HostStreams
from hotlap.runtime.other_threads import why_not_alone
from hotlap.runtime.replaced_methods import is_of_torch
from hotlap.runtime.silence import silenced

PLAIN = (bool, int, float, complex, str, bytes, type(None))
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
IN_PARALLEL = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel", "FSDPModule")


class NotAlone(RuntimeError):
    """Raised if other code would take part in the rehearsal: threads that draw random numbers, or replaced methods."""


@dataclass(frozen=True)
class RehearsalResult:
    outputs: list[Any]
    gradients: list[Any]
    inputs: list[Any]  # as the module left them
    kept: bool  # whether the module changed attributes of its own

    def equals(self, other: RehearsalResult) -> bool:
        """Return whether both results are bit-identical."""
        return (
            _equal(self.outputs, other.outputs)
            and _equal(self.gradients, other.gradients)
            and _equal(self.inputs, other.inputs)
        )


def rehearse(torch: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RehearsalResult:
    """Return the result of the module's own call and its gradients. An error in it is raised after cleaning up.

    Neither the call nor the gradients pass a seam, so other entries do not see a step.
    """
    if (why := why_not_alone()) is not None:
        raise NotAlone(why)
    if parallel(module):
        module = module.module  # the wrapper would wait for a backward pass that never comes
    if not is_of_torch(torch.nn.Module.__call__):
        raise NotAlone("the program has replaced the call of modules")
    given_args, given_kwargs = _copied(torch, (args, kwargs))
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with _no_trace(torch, module), _own_attributes(module) as held:
        outcome = unwrap(type(module).__call__)(module, *given_args, **given_kwargs)
        changed = any(attributes.changed() for attributes in held)
        outputs = [
            tensor for tensor in tensors_in(torch, outcome) if tensor.is_floating_point() and tensor.requires_grad
        ]
        gradients = _gradients(torch, outputs, parameters)
    return RehearsalResult(
        outputs=[output.detach() for output in outputs],
        gradients=gradients,
        inputs=tensors_in(torch, (given_args, given_kwargs)),
        kept=changed,
    )


def tensors_in(torch: Any, structure: Any) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(structure) if isinstance(leaf, torch.Tensor)]


def signature(torch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return shapes and dtypes, and the values of non-tensors: others may take another path through the model."""
    tensor = torch.Tensor
    if not kwargs and all([type(argument) is tensor for argument in args]):  # noqa: C419 a list is faster
        return tuple([(argument.shape, argument.dtype, argument.device, argument.requires_grad) for argument in args])
    from torch.utils._pytree import tree_leaves  # looking through containers costs ten times as much

    return tuple(
        [
            (leaf.shape, leaf.dtype, leaf.device, leaf.requires_grad) if isinstance(leaf, tensor) else _value(leaf)
            for leaf in tree_leaves((args, kwargs))
        ]
    )


def _value(leaf: Any) -> Any:
    """Return a plain leaf by value, and any other by identity, since its contents are unknown."""
    return (type(leaf), leaf if isinstance(leaf, PLAIN) else id(leaf))


def hooked(torch: Any, module: Any) -> bool:
    """Return whether hooks see what passes through the module or its gradients."""
    return any(getattr(submodule, name, None) for submodule in module.modules() for name in HOOKS) or any(
        parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
        for parameter in module.parameters()
    )


def parallel(module: Any) -> str | None:
    """Return the name of the class that spreads the module over devices or processes, if any."""
    return next((base.__name__ for base in type(module).__mro__ if base.__name__ in IN_PARALLEL), None)


def compiled(module: Any) -> bool:
    return any(
        type(submodule).__name__ == "OptimizedModule" or getattr(submodule, "_compiled_call_impl", None) is not None
        for submodule in module.modules()
    )


def _gradients(torch: Any, outputs: list[Any], parameters: list[Any]) -> list[Any]:
    if not outputs or not parameters:
        return []
    # A pattern instead of random numbers, different for each element so that swapped elements show.
    weights = [
        torch.cos(torch.arange(output.numel(), device=output.device, dtype=torch.float32))
        .reshape(output.shape)
        .to(output.dtype)
        for output in outputs
    ]
    from hotlap.kernels.gradients import gradients_of  # which imports torch

    return list(gradients_of(outputs, parameters, weights, allow_unused=True))


def _copied(torch: Any, structure: Any) -> Any:
    from torch.utils._pytree import tree_map

    def twin_of(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        twin = leaf.detach().clone()
        return twin.requires_grad_(leaf.requires_grad)

    return tree_map(twin_of, structure)


@contextmanager
def _no_trace(torch: Any, module: Any) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(silenced())
        stack.enter_context(_random_states(torch, module))
        stack.enter_context(_own_generators(torch, module))
        stack.enter_context(_own_parameters(torch, module))
        stack.enter_context(own_buffers(module))
        stack.enter_context(torch.enable_grad())
        yield


@contextmanager
def _random_states(torch: Any, module: Any) -> Iterator[None]:
    streams = HostStreams()
    devices = sorted({parameter.device.index for parameter in module.parameters() if parameter.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        streams.put_back()


@contextmanager
def _own_generators(torch: Any, module: Any) -> Iterator[None]:
    """Restore the random streams that modules hold."""
    held = [
        candidate
        for submodule in module.modules()
        for value in vars(submodule).values()
        for candidate in (value, *_contents(value))
    ]
    generators = [found for candidate in held if (found := access(torch, candidate)) is not None]
    states = [(write, read()) for _, read, write in generators]
    try:
        yield
    finally:
        for write, state in states:
            write(state)


def _contents(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple | set | frozenset | deque) else []


@contextmanager
def _own_parameters(torch: Any, module: Any) -> Iterator[None]:
    """Restore the parameters, which a forward may write to or replace, as a codebook does."""
    held = [(submodule, dict(submodule._parameters)) for submodule in module.modules() if submodule._parameters]
    written = [(parameter, parameter._version, parameter.detach().clone()) for parameter in module.parameters()]
    try:
        yield
    finally:
        for submodule, parameters in held:
            submodule._parameters.clear()
            submodule._parameters.update(parameters)
        with torch.no_grad():
            for parameter, version, before in written:
                if parameter._version != version:
                    parameter.copy_(before)


@contextmanager
def own_buffers(module: Any) -> Iterator[None]:
    """Replace the buffers with copies, so that running statistics do not change."""
    held = [(submodule, dict(submodule._buffers)) for submodule in module.modules() if submodule._buffers]
    try:
        for submodule, buffers in held:
            submodule._buffers.update(
                {name: None if buffer is None else buffer.clone() for name, buffer in buffers.items()}
            )
        yield
    finally:
        for submodule, buffers in held:
            submodule._buffers.clear()
            submodule._buffers.update(buffers)


@contextmanager
def _own_attributes(module: Any) -> Iterator[list[Attributes]]:
    held = [Attributes(submodule) for submodule in module.modules()]
    try:
        yield held
    finally:
        for attributes in held:
            attributes.restore()


def _equal(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(
        _same(tensor, counterpart) for tensor, counterpart in zip(left, right, strict=True)
    )


def _same(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is right
    return left.dtype == right.dtype and bool(left.equal(right))  # host sync; only while rehearsing

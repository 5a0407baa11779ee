"""Whether a fused kernel can update these tensors: it walks over all of them at once, in the order of memory."""

from __future__ import annotations

from collections.abc import Iterator
from operator import is_
from typing import Any

MOMENTUM = "momentum_buffer"


def why_not_tensors(optimizer: Any) -> str | None:
    """Return why not, for the parameters that have a gradient now; the others are not updated."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            if str(gradient.layout) != "torch.strided":
                return "gradients are sparse"
            order, along = _order(parameter), list(_along(optimizer, parameter))
            if not _is_dense(parameter) or any(_order(tensor) != order for tensor in along):
                return "gradients or state are laid out in memory differently from the parameters"
            if any(tensor.dtype != parameter.dtype for tensor in along):
                return "gradients or state have a different dtype from the parameters"
    return None


def is_laid_out_anew(optimizer: Any) -> bool:
    """Whether a gradient's layout or dtype no longer matches its parameter's; checked at every step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            try:
                alike = gradient.stride() == parameter.stride() or _order(gradient) == _order(parameter)
            except RuntimeError:  # sparse
                return True
            if not alike or gradient.dtype is not parameter.dtype:
                return True
    return False


def mark_as_written(torch: Any, optimizer: Any) -> None:
    """Tell autograd of the update, as fused and replayed steps do not: a graph may need the weights from before."""
    written = [
        parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.grad is not None
    ]
    torch.autograd.graph.increment_version(written)


class TensorSnapshot:
    """A snapshot of the tensors that an optimizer steps with: a program may replace them or change the layout of its
    weights. It is compared at every step, so it avoids Python loops.
    """

    def __init__(self, optimizer: Any) -> None:
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._stride = type(self._parameters[0]).stride if self._parameters else None
        self._strides = self._strides_now()
        held = [
            (optimizer.state[parameter], parameter) for parameter in self._parameters if parameter in optimizer.state
        ]
        self._owners, self._states = [parameter for _, parameter in held], [state for state, _ in held]
        places = [(state, name, value) for state in self._states for name, value in state.items()]
        self._holders, self._names, self._values = ([place[n] for place in places] for n in range(3))
        self._sizes = list(map(len, self._states))

    def holds(self, optimizer: Any) -> bool:
        return (
            self._strides_now() == self._strides
            and all(map(is_, map(optimizer.state.get, self._owners), self._states))
            and list(map(len, self._states)) == self._sizes
            and all(map(is_, map(dict.get, self._holders, self._names), self._values))
        )

    def _strides_now(self) -> list[Any]:
        return [] if self._stride is None else list(map(self._stride, self._parameters))


def begin_late_momenta(optimizer: Any) -> bool:
    """Fill in missing momenta with zeros, and return False where that is impossible. Fused SGD does not accept a
    missing momentum beside existing ones; a zero one becomes the gradient, as a first one does unless dampened.
    """
    for group in optimizer.param_groups:
        if not group.get("momentum"):
            continue
        states = [
            (parameter, optimizer.state[parameter]) for parameter in group["params"] if parameter.grad is not None
        ]
        late = [(parameter, state) for parameter, state in states if state.get(MOMENTUM) is None]
        if late and len(late) < len(states):
            if group.get("dampening"):
                return False
            for parameter, state in late:
                state[MOMENTUM] = parameter.detach().clone().zero_()
    return True


def _along(optimizer: Any, parameter: Any) -> Iterator[Any]:
    yield parameter.grad
    for tensor in (optimizer.state.get(parameter) or {}).values():
        if getattr(tensor, "shape", None) == parameter.shape:
            yield tensor


def _order(tensor: Any) -> tuple[int, ...]:
    """Return the strides of dimensions larger than 1. That of a dimension of size 1 is arbitrary in autograd."""
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1)


def _is_dense(tensor: Any) -> bool:
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return bool(tensor.numel() in (0, extent + 1))

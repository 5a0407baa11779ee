"""Whether a fused kernel can update these tensors: it walks over all of them at once, in the order of memory."""

from __future__ import annotations

from collections.abc import Iterator
from operator import is_
from typing import Any

MOMENTUM = "momentum_buffer"


def why_not_tensors(optimizer: Any) -> str | None:
    """Of parameters that have a gradient now; the others are not updated."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            if str(gradient.layout) != "torch.strided":
                return "gradients are sparse"
            order, along = _order(parameter), list(_along(optimizer, parameter))
            if not _is_dense(parameter) or any(_order(one) != order for one in along):
                return "gradients or state lie in memory in another order than the parameters"
            if any(one.dtype != parameter.dtype for one in along):
                return "gradients or state are of another type than the parameters"
    return None


def is_laid_out_anew(optimizer: Any) -> bool:
    """Whether a gradient has come to lie in another order than its parameter, or to be of another type; asked at every
    step.
    """
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
    """Fused and replayed steps do not tell autograd, which would not see that a graph needs weights from before."""
    written = [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
    torch.autograd.graph.increment_version(written)


class TensorSnapshot:
    """The tensors that an optimizer steps with, as they were when all of them were looked at: a program may put others
    in their place, or lay its weights out anew. Asked at every step, so without Python's own loops.
    """

    def __init__(self, optimizer: Any) -> None:
        self._parameters = [one for group in optimizer.param_groups for one in group["params"]]
        self._stride = type(self._parameters[0]).stride if self._parameters else None
        self._strides = self._strides_now()
        held = [(optimizer.state[one], one) for one in self._parameters if one in optimizer.state]
        self._owners, self._states = [one for _, one in held], [state for state, _ in held]
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
    """False where that cannot be. Fused SGD takes no momentum that is missing beside others that are there; one of zero
    becomes the gradient, as a first one does unless it is dampened.
    """
    for group in optimizer.param_groups:
        if not group.get("momentum"):
            continue
        states = [(one, optimizer.state[one]) for one in group["params"] if one.grad is not None]
        late = [(one, state) for one, state in states if state.get(MOMENTUM) is None]
        if late and len(late) < len(states):
            if group.get("dampening"):
                return False
            for parameter, state in late:
                state[MOMENTUM] = parameter.detach().clone().zero_()
    return True


def _along(optimizer: Any, parameter: Any) -> Iterator[Any]:
    yield parameter.grad
    for one in (optimizer.state.get(parameter) or {}).values():
        if getattr(one, "shape", None) == parameter.shape:
            yield one


def _order(tensor: Any) -> tuple[int, ...]:
    """The stride of a dimension of size 1 means nothing; autograd leaves it as it comes."""
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1)


def _is_dense(tensor: Any) -> bool:
    extent = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return bool(tensor.numel() in (0, extent + 1))

"""Whether a fused kernel can update these tensors: it walks over all of them at once, in the order of memory."""

from __future__ import annotations

from collections.abc import Iterator
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
            order = _order(parameter)
            if not _is_dense(parameter) or any(_order(one) != order for one in _along(optimizer, parameter)):
                return "gradients or state lie in memory in another order than the parameters"
    return None


def is_laid_out_anew(optimizer: Any) -> bool:
    """Whether a gradient has come to lie in another order than its parameter; asked at every step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            try:
                alike = gradient.stride() == parameter.stride() or _order(gradient) == _order(parameter)
            except RuntimeError:  # sparse
                return True
            if not alike:
                return True
    return False


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

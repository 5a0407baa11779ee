"""Run beside the backward pass what nothing in it waits for: weight gradients, and the value of the loss.

The step of a small model is a chain of small kernels, and its length is what the step takes. The gradient of a layer's
input leads on to the layer below; that of its weights is wanted by the optimizer alone. In a captured step both run at
once, with the same operations as without forks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

MEAN = 1  # how torch's own derivatives name that reduction


PRODUCTS, SUMS, REST = LANES = range(3)  # beside the backward: a sum does not wait until a large product is done


class Lanes(Protocol):
    def beside(self, lane: int) -> contextlib.AbstractContextManager[None]:
        """Run the work within after everything done so far here and in that lane, but beside what comes next here and
        beside the other lanes.
        """

    def join(self) -> None:
        """Make everything from here on wait for the work done beside."""


class CudaLanes:
    def __init__(self, device: torch.device) -> None:
        self.sides: list[Any] = [torch.cuda.Stream(device) for _ in LANES]  # type: ignore[no-untyped-call]
        self.used: set[int] = set()  # since the last join; a capture cannot wait for a stream that it does not know

    @contextlib.contextmanager
    def beside(self, lane: int) -> Iterator[None]:
        side = self.sides[lane]
        self.used.add(lane)
        side.wait_stream(torch.cuda.current_stream(side.device))
        with torch.cuda.stream(side):
            yield

    def join(self) -> None:
        for lane in sorted(self.used):
            side = self.sides[lane]
            torch.cuda.current_stream(side.device).wait_stream(side)
        self.used.clear()


class NothingToFork(Exception):
    """The step has neither a linear layer nor a loss that could be computed beside the backward pass."""


class Forks:
    """A loss function that forks; `join` must follow its backward.

    Tensors read in a lane are held until then: memory freed here would be reused here while the lane still reads it.
    """

    def __init__(self, lanes: Lanes, parameters: Iterable[Tensor], unit: Tensor, loss_of: Callable[[Any], Any]) -> None:
        self.lanes, self.unit, self.loss_of = lanes, unit, loss_of
        self.trained = {id(parameter) for parameter in parameters}
        self.single: set[int] | None = None  # parameters that one layer alone uses; None: not known yet
        self.final = False  # torch's loss function returns the loss itself, and nothing else reads it
        self.held: list[Tensor] = []
        self.last: Callable[[], None] = _nothing  # done beside the optimizer

    def __call__(self, item: Any) -> Any:
        if self.single is not None and not self.single and not self.final:
            raise NothingToFork
        with _ForkMode(self) as mode:
            found = self.loss_of(item)
        if self.single is None:
            self._learn(found[0], mode)
        return found

    def _learn(self, losses: dict[str, Tensor], mode: _ForkMode) -> None:
        """Learn from the first call, which does not fork. The step is captured because every call is like it."""
        paths = _paths_to_leaves(losses["loss"])
        self.single = {key for key, uses in mode.uses.items() if uses == paths.get(key) == 1 and key in self.trained}
        self.final = len(losses) == 1 and losses["loss"] is mode.loss and not mode.is_read

    @contextlib.contextmanager
    def beside(self, *read: Tensor, lane: int = REST) -> Iterator[None]:
        """Run the work within, which reads these tensors, in a lane."""
        self.held += read
        with self.lanes.beside(lane):
            yield

    def join(self) -> None:
        self.lanes.join()
        self.held.clear()


def _nothing() -> None: ...


def _paths_to_leaves(loss: Tensor) -> dict[int, int]:
    """Return how many edges of the autograd graph lead to each parameter."""
    counts: dict[int, int] = {}
    seen, left = set(), [loss.grad_fn]
    while left:
        node: Any = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for below, _ in node.next_functions:
            if hasattr(below, "variable"):
                counts[id(below.variable)] = counts.get(id(below.variable), 0) + 1
            left.append(below)
    return counts


class _ForkMode(TorchFunctionMode):
    def __init__(self, forks: Forks) -> None:
        super().__init__()
        self.forks = forks
        self.uses: dict[int, int] = {}  # of each parameter, by linear layers
        self.loss: Tensor | None = None
        self.is_read = False  # by another function

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.loss is not None and any(argument is self.loss for argument in (*args, *kwargs.values())):
            self.is_read = True
        if function is functional.linear and len(args) == 3 and not kwargs:
            return self._linear(*args)
        if function in DERIVATIVES and self.loss is None and _is_plain_mean(args, kwargs):
            self.loss = self._loss(function, *args)
            return self.loss
        return function(*args, **kwargs)

    def _linear(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        parameters = [weight] if bias is None else [weight, bias]
        for parameter in parameters:
            self.uses[id(parameter)] = self.uses.get(id(parameter), 0) + 1
        if all(self._is_forked(parameter) for parameter in parameters):
            return _Linear.apply(inputs, weight, bias, self.forks)  # type: ignore[no-any-return,no-untyped-call]
        return functional.linear(inputs, weight, bias)

    def _is_forked(self, parameter: Any) -> bool:
        hooked = parameter._backward_hooks or parameter._post_accumulate_grad_hooks
        return id(parameter) in (self.forks.single or ()) and not hooked

    def _loss(self, function: Any, outputs: Tensor, targets: Tensor) -> Tensor:
        if not self.forks.final:
            return function(outputs, targets)  # type: ignore[no-any-return]
        return _Loss.apply(outputs, targets, function, self.forks)  # type: ignore[no-any-return,no-untyped-call]


def _is_plain_mean(args: Any, kwargs: Any) -> bool:
    if len(args) != 2 or {name: value for name, value in kwargs.items() if value is not None} not in (
        {},
        {"reduction": "mean"},
    ):
        return False
    outputs, targets = args
    if outputs.shape != targets.shape or not outputs.dtype == targets.dtype == torch.float32:
        return False
    return outputs.requires_grad and not targets.requires_grad


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, forks: Forks) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.parameters, ctx.forks = (weight, bias), forks
        return functional.linear(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, None, None]:
        inputs, values = ctx.saved_tensors
        (weight, bias), forks = ctx.parameters, ctx.forks
        rows, given = upstream.reshape(-1, upstream.shape[-1]), inputs.reshape(-1, inputs.shape[-1])
        leads_on = ctx.needs_input_grad[0]
        if leads_on:
            with forks.beside(rows, given, lane=PRODUCTS):
                _add(weight, rows.t().mm(given))
        if bias is not None:
            with forks.beside(rows, lane=SUMS):
                _add(bias, rows.sum(0))
        if leads_on:
            return rows.mm(values).view_as(inputs), None, None, None
        _add(weight, rows.t().mm(given))  # the last of all: nothing is left for it to run beside
        return None, None, None, None


def _add(parameter: Tensor, gradient: Tensor) -> None:
    """Accumulate in the lane; autograd would do it on the main stream."""
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, targets: Tensor, function: Any, forks: Forks) -> Tensor:
        with forks.beside(outputs, targets):
            value: Tensor = function(outputs, targets)
        ctx.unit, ctx.derivative = forks.unit, DERIVATIVES[function](outputs, targets, forks.unit)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        is_one = upstream.data_ptr() == ctx.unit.data_ptr()
        return ctx.derivative if is_one else ctx.derivative * upstream, None, None, None


def _of_squares(outputs: Tensor, targets: Tensor, unit: Tensor) -> Tensor:
    """Write into memory that is not filled with zeros first."""
    into = torch.empty_like(outputs)
    return torch.ops.aten.mse_loss_backward.grad_input(  # type: ignore[no-any-return]
        unit, outputs, targets, MEAN, grad_input=into
    )


def _of_logits(outputs: Tensor, targets: Tensor, unit: Tensor) -> Tensor:
    return outputs.sigmoid().sub_(targets).div_(outputs.numel())


DERIVATIVES: dict[Any, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    functional.mse_loss: _of_squares,
    functional.binary_cross_entropy_with_logits: _of_logits,
}

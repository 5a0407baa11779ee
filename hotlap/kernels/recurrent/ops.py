"""The layers as operations that autograd and torch.compile know.

Eager code uses an autograd function, which costs the host less than a registered operation; while Dynamo compiles, the
registered one is used, with its shapes and its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from hotlap.kernels.recurrent import direct, stack
from hotlap.kernels.recurrent.plans import Plan
from hotlap.kernels.recurrent.stack import Gradients, Needs, OutputGradients, SavedOutputs, Shape, StackInputs

Outputs = tuple[Tensor, Tensor, Tensor]
SECOND = "recurrent layers have no second derivatives, like cuDNN's"
_GIVEN = "Tensor x, Tensor? h0, Tensor? c0, Tensor[] flat"
_SHAPE = "str kind, int layers, int directions, int hidden, bool bias, float dropout, bool exact, str variant"
_KEPT = "Tensor y, Tensor inner, Tensor cells, Tensor masks, Tensor? dy, Tensor? dh_n, Tensor? dc_n, bool needs_x"
FORWARD = f"({_GIVEN}, {_SHAPE}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
BACKWARD = f"({_GIVEN}, {_KEPT}, {_SHAPE}) -> Tensor[]"  # written out: torch 2.6 cannot read list[Tensor]


def recurrent(shape: Shape, given: StackInputs, compiling: bool = False) -> Outputs:
    """Return y, h_n and c_n; a GRU has no such state, and there c_n means nothing."""
    if compiling:
        y, h_n, c_n, *_ = torch.ops.hotlap.recurrent(
            given.x, given.h0, given.c0, given.flat, shape.kind, shape.layers, shape.directions, shape.hidden,
            shape.bias, shape.dropout, shape.exact, shape.variant,
        )  # fmt: skip
        return y, h_n, c_n
    if torch.is_grad_enabled() and _any_requires_grad(given):
        apply: Any = Recurrent.apply if torch._C._are_functorch_transforms_active() else _apply
        y, h_n, *more = apply(shape, given.x, given.h0, given.c0, *given.flat)
        return y, h_n, more[0] if more else h_n
    saved, _ = _forward(shape, given, False)
    return saved.y, saved.h_n, saved.c_n


def _in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn autocast off: it would round large products to float16, even in a backward pass called under it."""

    @wraps(function)
    def outside(*given: Any) -> Any:
        if not torch.is_autocast_enabled("cuda"):
            return function(*given)
        with torch.autocast("cuda", enabled=False):
            return function(*given)

    return outside


@_in_float32
def _forward(shape: Shape, given: StackInputs, keep: bool) -> tuple[SavedOutputs, Plan]:
    plan = direct.plan_for(shape, given.x)
    return direct.forward(plan, given, direct.allocate(plan, given.x, keep)), plan


def _any_requires_grad(given: StackInputs) -> bool:
    return any(tensor is not None and tensor.requires_grad for tensor in (given.x, given.h0, given.c0, *given.flat))


class Recurrent(torch.autograd.Function):
    """Returns y and h_n; for an LSTM also c_n."""

    @staticmethod
    def forward(ctx: Any, shape: Shape, x: Tensor, h0: Tensor | None, c0: Tensor | None, *flat: Tensor) -> Any:
        saved, ctx.plan = _forward(shape, StackInputs(x, h0, c0, flat), True)
        ctx.spent = False
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, h0, c0, saved.y, saved.inner, saved.cells, saved.masks, *flat)
        return (saved.y, saved.h_n, saved.c_n) if shape.kind == "lstm" else (saved.y, saved.h_n)

    @staticmethod
    def backward(ctx: Any, *coming: Tensor | None) -> Any:
        return (_refusing if torch.is_grad_enabled() else _of_inputs)(ctx, *coming)


@_in_float32
def _of_inputs(ctx: Any, dy: Tensor | None, dh_n: Tensor | None, dc_n: Tensor | None = None) -> Any:
    x, h0, c0, y, inner, cells, masks, *flat = ctx.saved_tensors
    saved, coming = SavedOutputs(y, y, y, inner, cells, masks), OutputGradients(dy, dh_n, dc_n)
    _, needs_x, needs_h0, needs_c0, *_ = ctx.needs_input_grad
    needs = Needs(needs_x, needs_h0, needs_c0)
    given = StackInputs(x, h0, c0, flat)
    if ctx.spent:
        saved.cells = direct.again(ctx.plan, given, saved)
    ctx.spent = True
    made = direct.backward(ctx.plan, given, saved, coming, needs, True)
    return None, made.x, made.h0 if needs_h0 else None, made.c0 if needs_c0 else None, *made.flat


def _refusing(ctx: Any, *coming: Tensor | None) -> Any:
    """Return gradients whose own backward raises, as with cuDNN, since a graph of the gradients was requested."""
    with torch.no_grad():
        made = _of_inputs(ctx, *coming)
    refused: Any = torch._C._functions.DelayedError(SECOND.encode(), len(made))
    return refused(*(None if gradient is None else gradient.detach().requires_grad_() for gradient in made))


_apply: Any = super(torch.autograd.Function, Recurrent).apply  # without functorch's part, of which we need nothing


@_in_float32
def _into(shape: Shape, given: StackInputs, saved: SavedOutputs) -> None:
    direct.forward(direct.plan_for(shape, given.x), given, saved)


@_in_float32
def _back(shape: Shape, given: StackInputs, saved: SavedOutputs, coming: OutputGradients, needs: Needs) -> Gradients:
    return direct.backward(direct.plan_for(shape, given.x), given, saved, coming, needs)


@torch.library.custom_op("hotlap::recurrent", mutates_args=(), schema=FORWARD)
def _recurrent(
    x: Tensor, h0: Tensor | None, c0: Tensor | None, flat: list[Tensor], kind: str, layers: int, directions: int,
    hidden: int, bias: bool, dropout: float, exact: bool, variant: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    shape = Shape(kind, layers, directions, hidden, bias, dropout, exact, variant)
    saved = stack.allocate(shape, x)
    _into(shape, StackInputs(x, h0, c0, flat), saved)
    return saved.y, saved.h_n, saved.c_n, saved.inner, saved.cells, saved.masks


@_recurrent.register_fake
def _(x: Tensor, h0: Any, c0: Any, flat: Any, kind: str, layers: int, directions: int, hidden: int, bias: bool,
      dropout: float, exact: bool, variant: str) -> Any:  # fmt: skip
    shape = Shape(kind, layers, directions, hidden, bias, dropout, exact, variant)
    saved = stack.allocate(shape, x)
    return saved.y, saved.h_n, saved.c_n, saved.inner, saved.cells, saved.masks


@torch.library.custom_op("hotlap::recurrent_backward", mutates_args=(), schema=BACKWARD)
def _recurrent_backward(
    x: Tensor, h0: Tensor | None, c0: Tensor | None, flat: list[Tensor], y: Tensor, inner: Tensor, cells: Tensor,
    masks: Tensor, dy: Tensor | None, dh_n: Tensor | None, dc_n: Tensor | None, needs_x: bool, kind: str, layers: int,
    directions: int, hidden: int, bias: bool, dropout: float, exact: bool, variant: str,
) -> list[Tensor]:  # fmt: skip
    shape = Shape(kind, layers, directions, hidden, bias, dropout, exact, variant)
    saved, coming = SavedOutputs(y, y, y, inner, cells, masks), OutputGradients(dy, dh_n, dc_n)
    made = _back(shape, StackInputs(x, h0, c0, flat), saved, coming, Needs(needs_x))
    nothing = x.new_empty(0)
    dc0 = x.new_empty(0, x.shape[1], hidden) if made.c0 is None else made.c0
    return [nothing if made.x is None else made.x, nothing if made.h0 is None else made.h0, dc0, *made.flat]


@_recurrent_backward.register_fake
def _(x: Tensor, h0: Any, c0: Any, flat: list[Tensor], y: Tensor, inner: Any, cells: Any, masks: Any, dy: Any,
      dh_n: Any, dc_n: Any, needs_x: bool, kind: str, layers: int, directions: int, hidden: int, bias: bool,
      dropout: float, exact: bool, variant: str) -> list[Tensor]:  # fmt: skip
    states = layers * directions
    dx = x.new_empty(x.shape) if needs_x else x.new_empty(0)
    dh = x.new_empty(states, x.shape[1], hidden)
    dc = x.new_empty(states if kind == "lstm" else 0, x.shape[1], hidden)
    return [dx, dh, dc, *(torch.empty_like(weight, memory_format=torch.contiguous_format) for weight in flat)]


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    x, h0, c0, flat, *settings = inputs
    y, _, _, inner, cells, masks = output
    ctx.settings, ctx.has = settings, (h0 is not None, c0 is not None)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, h0, c0, y, inner, cells, masks, *flat)


def _gradients(ctx: Any, dy: Any, dh_n: Any, dc_n: Any, *_: Any) -> Any:
    x, h0, c0, y, inner, cells, masks, *flat = ctx.saved_tensors
    needs_x = bool(ctx.needs_input_grad[0])
    dx, dh0, dc0, *of_flat = torch.ops.hotlap.recurrent_backward(
        x, h0, c0, flat, y, inner, cells, masks, dy, dh_n, dc_n, needs_x, *ctx.settings
    )
    has_h0, has_c0 = ctx.has
    return dx if needs_x else None, dh0 if has_h0 else None, dc0 if has_c0 else None, of_flat, *(None,) * 8


_recurrent.register_autograd(_gradients, setup_context=_remember)

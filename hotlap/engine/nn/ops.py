"""The layers as operations that autograd and torch.compile know.

Eagerly an autograd function is used, which costs less of the host than a registered operation; while Dynamo compiles,
the registered one, with its shapes and its gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotlap.engine.nn import stack, unwind
from hotlap.engine.nn.stack import Given, Kept, Shape

Outputs = tuple[Tensor, Tensor, Tensor]
_GIVEN = "Tensor x, Tensor? h0, Tensor? c0, Tensor[] flat"
_SHAPE = "str kind, int layers, int directions, int hidden, bool bias, float dropout, bool exact, str variant"
_KEPT = "Tensor y, Tensor inner, Tensor cells, Tensor masks, Tensor? dy, Tensor? dh_n, Tensor? dc_n, bool needs_x"
FORWARD = f"({_GIVEN}, {_SHAPE}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
BACKWARD = f"({_GIVEN}, {_KEPT}, {_SHAPE}) -> Tensor[]"  # written out: torch 2.6 cannot read list[Tensor]


def recurrent(shape: Shape, given: Given) -> Outputs:
    """y, h_n and c_n (empty for a GRU)."""
    if torch.compiler.is_compiling():
        y, h_n, c_n, *_ = torch.ops.hotlap.recurrent(
            given.x, given.h0, given.c0, given.flat, shape.kind, shape.layers, shape.directions, shape.hidden,
            shape.bias, shape.dropout, shape.exact, shape.variant,
        )  # fmt: skip
        return y, h_n, c_n
    if torch.is_grad_enabled() and _any_requires_grad(given):
        apply: Any = Recurrent.apply
        made: Outputs = apply(shape, given.x, given.h0, given.c0, *given.flat)
        return made
    kept = stack.forward(shape, given, keep=False)
    return kept.y, kept.h_n, kept.c_n


def _any_requires_grad(given: Given) -> bool:
    return any(one is not None and one.requires_grad for one in (given.x, given.h0, given.c0, *given.flat))


class Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shape: Shape, x: Tensor, h0: Tensor | None, c0: Tensor | None, *flat: Tensor) -> Outputs:
        kept = stack.forward(shape, Given(x, h0, c0, list(flat)), keep=True, keep_gates=True)
        ctx.shape, ctx.gates = shape, kept.gates
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, h0, c0, kept.y, kept.inner, kept.cells, kept.masks, *flat)
        return kept.y, kept.h_n, kept.c_n

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dh_n: Tensor | None, dc_n: Tensor | None) -> Any:
        x, h0, c0, y, inner, cells, masks, *flat = ctx.saved_tensors
        shape: Shape = ctx.shape
        states = y.new_empty(shape.states, y.shape[1], shape.hidden)
        c_n = states if shape.kind == "lstm" else states[:0]
        coming = unwind.Incoming(dy, dh_n, dc_n if shape.kind == "lstm" else None)
        kept = Kept(y, states, c_n, inner, cells, masks, ctx.gates)
        ctx.gates = None  # overwritten by its gradients; a second backward makes the gates again
        made = unwind.backward(shape, Given(x, h0, c0, flat), kept, coming, ctx.needs_input_grad[1])
        return None, made.x, None if h0 is None else made.h0, None if c0 is None else made.c0, *made.flat


@torch.library.custom_op("hotlap::recurrent", mutates_args=(), schema=FORWARD)
def _recurrent(
    x: Tensor, h0: Tensor | None, c0: Tensor | None, flat: list[Tensor], kind: str, layers: int, directions: int,
    hidden: int, bias: bool, dropout: float, exact: bool, variant: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    shape = Shape(kind, layers, directions, hidden, bias, dropout, exact, variant)
    kept = stack.forward(shape, Given(x, h0, c0, flat), keep=True)
    return kept.y, kept.h_n, kept.c_n, kept.inner, kept.cells, kept.masks


@_recurrent.register_fake
def _(x: Tensor, h0: Any, c0: Any, flat: Any, kind: str, layers: int, directions: int, hidden: int, bias: bool,
      dropout: float, exact: bool, variant: str) -> Any:  # fmt: skip
    shape = Shape(kind, layers, directions, hidden, bias, dropout, exact, variant)
    kept = stack.allocate(shape, x, keep=True)
    return kept.y, kept.h_n, kept.c_n, kept.inner, kept.cells, kept.masks


@torch.library.custom_op("hotlap::recurrent_backward", mutates_args=(), schema=BACKWARD)
def _recurrent_backward(
    x: Tensor, h0: Tensor | None, c0: Tensor | None, flat: list[Tensor], y: Tensor, inner: Tensor, cells: Tensor,
    masks: Tensor, dy: Tensor | None, dh_n: Tensor | None, dc_n: Tensor | None, needs_x: bool, kind: str, layers: int,
    directions: int, hidden: int, bias: bool, dropout: float, exact: bool, variant: str,
) -> list[Tensor]:  # fmt: skip
    shape = Shape(kind, layers, directions, hidden, bias, dropout, exact, variant)
    states = y.new_empty(shape.states, y.shape[1], hidden)
    kept = Kept(y, states, states if kind == "lstm" else states[:0], inner, cells, masks)
    coming = unwind.Incoming(dy, dh_n, dc_n if kind == "lstm" else None)
    made = unwind.backward(shape, Given(x, h0, c0, flat), kept, coming, needs_x)
    return [made.x if made.x is not None else x.new_empty(0), made.h0, made.c0, *made.flat]


@_recurrent_backward.register_fake
def _(x: Tensor, h0: Any, c0: Any, flat: list[Tensor], y: Tensor, inner: Any, cells: Any, masks: Any, dy: Any,
      dh_n: Any, dc_n: Any, needs_x: bool, kind: str, layers: int, directions: int, hidden: int, bias: bool,
      dropout: float, exact: bool, variant: str) -> list[Tensor]:  # fmt: skip
    states = layers * directions
    dx = x.new_empty(x.shape) if needs_x else x.new_empty(0)
    dh = x.new_empty(states, x.shape[1], hidden)
    dc = x.new_empty(states if kind == "lstm" else 0, x.shape[1], hidden)
    return [dx, dh, dc, *(torch.empty_like(one, memory_format=torch.contiguous_format) for one in flat)]


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

"""Normalisation and activation as one operation that autograd knows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hotlap.kernels.gradients import gradients_of
from hotlap.kernels.norms.launches import MOMENTS, SUMS, PassArguments, Plan

OF_ACTIVATION = {"none": lambda x: x, "relu": functional.relu, "silu": functional.silu}


class Statistics:
    """A layer's statistics, changed by each forward pass in training; None where the layer keeps none."""

    def __init__(self, mean: Tensor | None, variance: Tensor | None, tracked: Tensor | None, momentum: float) -> None:
        self.mean, self.variance, self.tracked, self.momentum = mean, variance, tracked, momentum


def _readable(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor as the kernels read it: in channels-last, at an address of whole vectors."""
    made = tensor.to(dtype).contiguous(memory_format=torch.channels_last)
    return made.clone() if made.data_ptr() % 16 else made


def normalised(
    plan: Plan, x: Tensor, weight: Tensor | None, bias: Tensor | None, statistics: Statistics, eps: float
) -> Tensor:
    """Normalise `x` as in training, by the moments of this batch."""
    given = (x, *(tensor for tensor in (weight, bias) if tensor is not None))
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        made: Tensor = _apply(plan, statistics, eps, x, weight, bias)
        return made
    return _forward(plan, x, weight, bias, statistics, eps)[0]


def _forward(
    plan: Plan, x: Tensor, weight: Tensor | None, bias: Tensor | None, statistics: Statistics, eps: float
) -> tuple[Tensor, Tensor]:
    channels = plan.shape.channels
    saved = torch.empty(4 * channels, dtype=torch.float32, device=x.device)
    parts = torch.empty(2 * plan.parts[MOMENTS] * channels, dtype=torch.float32, device=x.device)
    y = torch.empty_like(x)
    plan.forward(
        PassArguments(
            x, saved, parts, y, weight, bias, statistics.mean, statistics.variance, statistics.tracked,
            momentum=statistics.momentum, eps=eps,
        )
    )  # fmt: skip
    if statistics.tracked is not None:
        torch.autograd.graph.increment_version([statistics.tracked])
    return y, saved


class NormFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: Plan, statistics: Statistics, eps: float, x: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        y, saved = _forward(plan, x, weight, bias, statistics, eps)
        ctx.plan, ctx.eps, ctx.bias = plan, eps, bias  # a bias may be changed before the backward
        ctx.save_for_backward(x, weight, saved)
        return y

    @staticmethod
    def backward(ctx: Any, *coming: Tensor) -> Any:
        (x, weight, saved), bias = ctx.saved_tensors, ctx.bias
        if torch.is_grad_enabled():  # a graph of the gradients is requested
            return None, None, None, *_by_torch(ctx, x, weight, bias, coming[0])
        *_, needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        plan, channels = ctx.plan, ctx.plan.shape.channels
        parts = torch.empty(2 * plan.parts[SUMS] * channels, dtype=torch.float32, device=x.device)
        x, g = _readable(x, x.dtype), _readable(coming[0], x.dtype)  # hooks may have kept them in another layout
        dx = torch.empty_like(x) if needs_x else None
        dweight = torch.empty_like(weight) if needs_weight else None
        dbias = torch.empty_like(bias) if needs_bias else None
        plan.backward(PassArguments(x, saved, parts, g=g, dx=dx, dweight=dweight, dbias=dbias))
        return None, None, None, dx, dweight, dbias


_apply: Any = super(torch.autograd.Function, NormFunction).apply  # without functorch's part, of which we need nothing


def _by_torch(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, g: Tensor) -> list[Tensor | None]:
    """Return gradients that can be differentiated again."""
    y = functional.batch_norm(x, None, None, weight, bias, True, 0.0, ctx.eps)
    y = OF_ACTIVATION[ctx.plan.shape.activation](y)
    needs = ctx.needs_input_grad[-3:]
    needed: Any = [tensor for tensor, is_needed in zip((x, weight, bias), needs, strict=True) if is_needed]
    found = iter(gradients_of([y], needed, [g], create_graph=True))
    return [next(found) if is_needed else None for is_needed in needs]

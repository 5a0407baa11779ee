"""Run the layers of a module with the kernels that were chosen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotlap.kernels.recurrent.geometry import WALKED_AT_MOST
from hotlap.kernels.recurrent.ops import recurrent
from hotlap.kernels.recurrent.stack import Shape, StackInputs


def shape_of(module: Any, kind: str, exact: bool, variant: str) -> Shape:
    return Shape(
        kind, module.num_layers, 2 if module.bidirectional else 1, module.hidden_size, module.bias,
        float(module.dropout) if module.training else 0.0, exact, variant,
    )  # fmt: skip


def run(
    module: Any, x: Tensor, h0: Tensor | None, c0: Tensor | None, shape: Shape, autocast: torch.dtype | None = None,
    plain: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return y, h_n, c_n of a module that passed why_not; x has time first. `plain` are its weights, if known."""
    compiling = plain is None and torch.compiler.is_compiling()
    flat = plain or [getattr(module, name) for name in module._flat_weights_names]  # a parametrization makes them anew
    if x.dtype == torch.float32 == flat[0].dtype and autocast is None:
        return recurrent(shape, StackInputs(_dense(x, compiling), h0, c0, flat), compiling)
    wanted = autocast or x.dtype
    given = StackInputs(  # low precision accumulates in float32
        _dense(x.float(), compiling),
        None if h0 is None else h0.float(),
        None if c0 is None else c0.float(),
        [weight.float() for weight in flat],
    )
    y, h_n, c_n = recurrent(shape, given, compiling)
    return y.to(wanted), h_n.to(wanted), c_n.to(wanted)


def _dense(x: Tensor, compiling: bool) -> Tensor:
    """Make inputs contiguous, unless the kernels multiply them themselves: those read any order of steps and rows."""
    walked = not compiling and x.shape[2] <= WALKED_AT_MOST and x.stride(2) == 1
    return x if walked else x.contiguous()


def states_of(kind: str, hx: Any, batched: bool) -> tuple[Tensor | None, Tensor | None]:
    if hx is None:
        return None, None
    h0, c0 = hx if kind == "lstm" else (hx, None)
    if not batched:
        h0, c0 = h0.unsqueeze(1), None if c0 is None else c0.unsqueeze(1)
    return h0, c0


def shaped(module: Any, kind: str, batched: bool, y: Tensor, h_n: Tensor, c_n: Tensor) -> Any:
    if not batched:
        y, h_n, c_n = y.squeeze(1), h_n.squeeze(1), c_n.squeeze(1) if kind == "lstm" else c_n
    elif module.batch_first:
        y = y.transpose(0, 1)
    return y, (h_n, c_n) if kind == "lstm" else h_n

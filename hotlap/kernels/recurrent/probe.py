"""The layer with which a shape is compared and timed: by torch.nn, by one of ours, and in float64.

Its weights are as large as torch.nn's initial ones. In a layer with larger ones, or with rows that are all alike,
rounding errors grow with every step until float32 and float64 results have nothing in common, and then a comparison
says nothing about a kernel. The program's random numbers are not touched.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hotlap.kernels.gradients import gradients_of

if TYPE_CHECKING:
    from hotlap.kernels.recurrent.key import Key

SEED = 8
STATES_AT_ONCE = 2**25  # hidden states of all layers and steps that float64 keeps at a time: some 4 GB of cuDNN's


class _LSTM(torch.nn.LSTM):
    def reset_parameters(self) -> None:
        """Draw no random numbers of the program's. On the meta device none are drawn either, but it takes seconds to
        import.
        """


class _GRU(torch.nn.GRU):
    def reset_parameters(self) -> None:
        """Draw no random numbers of the program's."""


def made(key: Key, device: str) -> tuple[Any, Tensor, Tensor]:
    """Make a torch.nn layer, inputs and gradients of outputs."""
    dtype, generator = getattr(torch, key.dtype), torch.Generator(device=device).manual_seed(SEED)
    kind: Any = _LSTM if key.kind == "lstm" else _GRU
    options: dict[str, Any] = {"bias": key.bias, "bidirectional": key.directions == 2, "dtype": dtype}
    layer = kind(key.features, key.hidden, key.layers, device=device, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-(key.hidden**-0.5), key.hidden**-0.5, generator=generator)

    def drawn(width: int) -> Tensor:
        values = torch.empty(key.steps, key.batch, width, device=device, dtype=dtype)
        return values.uniform_(-1, 1, generator=generator)

    return layer, drawn(key.features), drawn(key.hidden * key.directions)


def by_torch(key: Key, layer: Any, x: Tensor, dy: Tensor) -> list[Tensor]:
    """Return the outputs and, if requested, the gradients of all weights."""
    return _with_gradients(key, layer, layer(x)[0], dy)


def by_ours(key: Key, layer: Any, x: Tensor, dy: Tensor, variant: str) -> list[Tensor]:
    from hotlap.kernels.recurrent.layer import run, shape_of

    return _with_gradients(key, layer, run(layer, x, None, None, shape_of(layer, key.kind, key.exact, variant))[0], dy)


def in_float64(key: Key, layer: Any, x: Tensor, dy: Tensor) -> list[Tensor]:
    """Compute like by_torch, some batch rows at a time, whose gradients are added."""
    exact = copy.deepcopy(layer).double()
    rows = max(1, STATES_AT_ONCE // (key.steps * key.hidden * key.layers * key.directions))
    outputs, total = [], [torch.zeros_like(parameter) for parameter in exact.parameters()] if key.backward else []
    for first in range(0, key.batch, rows):
        some = slice(first, first + rows)
        y, *gradients = by_torch(key, exact, x[:, some].double(), dy[:, some].double())
        outputs.append(y.detach())
        total = [partial + more for partial, more in zip(total, gradients, strict=True)]
    return [torch.cat(outputs, 1), *total]


def _with_gradients(key: Key, layer: Any, y: Tensor, dy: Tensor) -> list[Tensor]:
    if not key.backward:
        return [y]
    return [y, *gradients_of([y], list(layer.parameters()), [dy])]

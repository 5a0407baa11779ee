"""All layers and directions of an LSTM or GRU, forward, in plain torch; direct.py is for CUDA kernels.

Products with the inputs are single large products outside the walks. Gates are not kept for backward, which makes them
again (see unwind.py), except those of the last walk: the first walk backward would need the same memory at once. Kept
are the hidden states of all layers, the cells of an LSTM and one byte of mask for each value that dropout saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hotlap.kernels.recurrent import recurrence_steps
from hotlap.kernels.recurrent.precision import products
from hotlap.kernels.recurrent.recurrence import Recurrence


@dataclass(frozen=True)
class Shape:
    """The properties of a layer that do not change from call to call."""

    kind: str  # lstm, gru
    layers: int
    directions: int
    hidden: int
    bias: bool
    dropout: float  # between layers; 0 unless training
    exact: bool
    variant: str  # see geometry.py

    @property
    def gates(self) -> int:
        return 4 if self.kind == "lstm" else 3

    @property
    def by_cuda(self) -> bool:
        return self.variant.startswith("cuda")

    @property
    def kept_width(self) -> int:
        """Floats of each row that forward leaves for backward: cells, and by the CUDA kernels the gates."""
        cells = 1 if self.kind == "lstm" else 0
        return self.hidden * (cells + 4 * self.by_cuda)

    @property
    def states(self) -> int:
        return self.layers * self.directions

    def weights(self, flat: Sequence[Tensor], state: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return the weights of inputs, of states, and both biases."""
        count = 4 if self.bias else 2
        mine = flat[count * state :][:count]
        return (mine[0], mine[1], mine[2], mine[3]) if self.bias else (mine[0], mine[1], None, None)


@dataclass
class SavedOutputs:
    """Outputs and what backward needs. Time comes first everywhere."""

    y: Tensor
    h_n: Tensor
    c_n: Tensor  # empty for a GRU
    inner: Tensor  # hidden states of all layers but the last
    cells: Tensor  # of all layers and directions, by the CUDA kernels with the gates; empty where none are needed
    masks: Tensor  # of dropout between layers; empty without
    gates: Tensor | None = None  # of the last walk; backward begins with it and needs its memory anyway


@dataclass
class StackInputs:
    x: Tensor  # steps × batch × features
    h0: Tensor | None  # (layers × directions) × batch × hidden
    c0: Tensor | None
    flat: Sequence[Tensor]  # weights as torch.nn lists them


def forward(shape: Shape, given: StackInputs, saved: SavedOutputs, keep_gates: bool = False) -> SavedOutputs:
    last_state = shape.states - 1 if keep_gates else -1
    x = given.x
    for layer in range(shape.layers):
        last = layer == shape.layers - 1
        y = saved.y if last else saved.inner[layer]
        for direction in range(shape.directions):
            state = layer * shape.directions + direction
            gates = _walk(shape, given, saved, state, x, y, state == last_state)
            saved.gates = gates if state == last_state else None
            del gates
        x = y
        if shape.dropout > 0 and not last:
            x, saved.masks[layer] = torch.native_dropout(y, shape.dropout, True)
    return saved


def allocate(shape: Shape, x: Tensor, keep: bool) -> SavedOutputs:
    """Allocate the outputs; those that the shape does not have are empty."""
    steps, batch = x.shape[0], x.shape[1]
    wide, inner, lstm = shape.hidden * shape.directions, shape.layers - 1, shape.kind == "lstm"
    width = shape.kept_width if keep else 0
    return SavedOutputs(
        y=x.new_empty(steps, batch, wide),
        h_n=x.new_empty(shape.states, batch, shape.hidden),
        c_n=x.new_empty(shape.states if lstm else 0, batch, shape.hidden),
        inner=x.new_empty(inner, steps, batch, wide),
        cells=x.new_empty(shape.states if width else 0, steps, batch, width),
        masks=x.new_empty(inner if shape.dropout > 0 else 0, steps, batch, wide, dtype=torch.bool),
    )


def _walk(
    shape: Shape, given: StackInputs, saved: SavedOutputs, state: int, x: Tensor, y: Tensor, keep: bool
) -> Tensor:
    of_x, of_h, bias_ih, bias_hh = shape.weights(given.flat, state)
    width = shape.gates * shape.hidden
    flat = x.reshape(-1, x.shape[2])
    gates = x.new_empty(flat.shape[0], 4 * shape.hidden if keep else width)
    with products(shape.exact):
        torch.mm(flat, of_x.t(), out=gates[:, :width])
    recurrence = Recurrence(
        kind=shape.kind,
        reverse=state % shape.directions == 1,
        exact=shape.exact,
        gates=gates.view(x.shape[0], x.shape[1], -1),
        keep=keep,
        weight=of_h,
        bias_ih=bias_ih,
        bias_hh=bias_hh,
        h0=at(given.h0, state),
        c0=at(given.c0, state),
        y=side(shape, y, state),
        cells=at(saved.cells, state),
        h_n=saved.h_n[state],
        c_n=at(saved.c_n, state),
    )
    recurrence_steps.forward(recurrence)
    return gates


def at(tensor: Tensor | None, index: int) -> Tensor | None:
    """Return a row of the tensor, or None if there is none."""
    return None if tensor is None or tensor.shape[0] == 0 else tensor[index]


def side(shape: Shape, wide: Tensor, state: int) -> Tensor:
    """Return one direction's part of what both write side by side."""
    first = state % shape.directions * shape.hidden
    return wide[..., first : first + shape.hidden]

"""What goes into all layers and directions of an LSTM or GRU, and what comes out, forward and backward.

Kept for backward are the hidden states and gates of all layers, the cells of an LSTM and one byte of mask for each
value that dropout saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


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
    def kept_width(self) -> int:
        """Floats of each row that forward leaves for backward: the gates, and the cells of an LSTM."""
        return self.hidden * (5 if self.kind == "lstm" else 4)

    @property
    def states(self) -> int:
        return self.layers * self.directions


@dataclass
class SavedOutputs:
    """Outputs and what backward needs. Time comes first everywhere."""

    y: Tensor
    h_n: Tensor
    c_n: Tensor  # empty for a GRU
    inner: Tensor  # hidden states of all layers but the last
    cells: Tensor  # of all layers and directions, with the gates; empty where none are needed
    masks: Tensor  # of dropout between layers; empty without


@dataclass
class StackInputs:
    x: Tensor  # steps × batch × features
    h0: Tensor | None  # (layers × directions) × batch × hidden
    c0: Tensor | None
    flat: Sequence[Tensor]  # weights as torch.nn lists them


@dataclass
class OutputGradients:
    y: Tensor | None
    h_n: Tensor | None
    c_n: Tensor | None


@dataclass
class Gradients:
    x: Tensor | None
    h0: Tensor | None
    c0: Tensor | None  # empty or None for a GRU
    flat: list[Tensor]  # of the weights, as torch.nn lists them


class Needs(NamedTuple):
    """Which gradients are requested, besides those of the weights."""

    x: bool
    h0: bool = True
    c0: bool = True


def allocate(shape: Shape, x: Tensor) -> SavedOutputs:
    """Allocate the outputs, each of its own memory; those that the shape does not have are empty."""
    steps, batch = x.shape[0], x.shape[1]
    wide, inner, lstm = shape.hidden * shape.directions, shape.layers - 1, shape.kind == "lstm"
    return SavedOutputs(
        y=x.new_empty(steps, batch, wide),
        h_n=x.new_empty(shape.states, batch, shape.hidden),
        c_n=x.new_empty(shape.states if lstm else 0, batch, shape.hidden),
        inner=x.new_empty(inner, steps, batch, wide),
        cells=x.new_empty(shape.states, steps, batch, shape.kept_width),
        masks=x.new_empty(inner if shape.dropout > 0 else 0, steps, batch, wide, dtype=torch.bool),
    )


def _scale(shape: Shape) -> float:
    return 0.0 if shape.dropout == 1 else 1 / (1 - shape.dropout)


def input_of(shape: Shape, given: StackInputs, saved: SavedOutputs, layer: int) -> Tensor:
    if layer == 0:
        return given.x
    y = saved.inner[layer - 1]
    return y * saved.masks[layer - 1] * _scale(shape) if shape.dropout > 0 else y


def through_dropout(shape: Shape, saved: SavedOutputs, layer: int, dx: Tensor | None) -> Tensor | None:
    if dx is None or layer == 0 or shape.dropout == 0:
        return dx
    return dx.mul_(saved.masks[layer - 1]).mul_(_scale(shape))

"""All layers and directions of an LSTM or GRU, backward, in plain torch; see stack.py.

For each layer and direction the gates are made again as large products, the walk turns them into their gradients in
place, and the gradients of weights and inputs are large products of those. Nothing is added in an order that could
change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hotlap.kernels.recurrent import recurrence_steps
from hotlap.kernels.recurrent.precision import products
from hotlap.kernels.recurrent.recurrence import Recurrence
from hotlap.kernels.recurrent.stack import SavedOutputs, Shape, StackInputs, at, side

TILE, TILES_AT_ONCE = 64, 256  # of a large product: columns of one tile, and tiles that keep a large GPU busy
ROWS_OF_A_PART = 1024


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


def backward(shape: Shape, given: StackInputs, saved: SavedOutputs, coming: OutputGradients, needs: Needs) -> Gradients:
    made = Gradients(None, torch.empty_like(saved.h_n), torch.empty_like(saved.c_n), [])
    dy = coming.y
    by_state: list[list[Tensor]] = [[] for _ in range(shape.states)]
    for layer in range(shape.layers - 1, -1, -1):
        x = input_of(shape, given, saved, layer)
        y = saved.y if layer == shape.layers - 1 else saved.inner[layer]
        dx: Tensor | None = None
        for direction in reversed(range(shape.directions)):  # the last one walked still has its gates
            state = layer * shape.directions + direction
            walk = Layer(shape, given, state, x, y, saved.gates)
            saved.gates = None  # of the first walk backward only
            parts = walk.backward(saved, coming, dy, made)
            by_state[state] = walk.weight_gradients(parts)
            if layer > 0 or needs.x:
                dx = walk.input_gradient(dx)
        dy = through_dropout(shape, saved, layer, dx)
    made.flat = [gradient for weights in by_state for gradient in weights]
    made.x = dy if needs.x else None
    return made


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


class Layer:
    """One layer in one direction. `gates` are its products first, and their gradients once it was walked."""

    def __init__(
        self, shape: Shape, given: StackInputs, state: int, x: Tensor, y: Tensor, ready: Tensor | None
    ) -> None:
        self.shape, self.state = shape, state
        self.reverse = state % shape.directions == 1
        self.of_x, self.of_h, self.bias_ih, self.bias_hh = shape.weights(given.flat, state)
        self.h0, self.c0 = at(given.h0, state), at(given.c0, state)
        self.steps, self.batch = x.shape[0], x.shape[1]
        self.x = x.reshape(-1, x.shape[2])
        self.y = side(shape, y, state)
        self._states = side(shape, y.view(-1, y.shape[2]), state)
        self.gates = x.new_empty(self.x.shape[0], 4 * shape.hidden) if ready is None else ready
        if ready is None:
            self._multiply()

    @property
    def of_inputs(self) -> Tensor:
        return self.gates[:, : self.shape.gates * self.shape.hidden]

    def _of_states(self) -> Iterator[tuple[slice, slice, bool]]:
        """Yield columns of the gates, rows of the weights, and whether the inputs contribute to them."""
        hidden = self.shape.hidden
        if self.shape.kind == "lstm":
            yield slice(0, 4 * hidden), slice(0, 4 * hidden), True
        else:
            yield slice(0, 2 * hidden), slice(0, 2 * hidden), True
            yield slice(3 * hidden, 4 * hidden), slice(2 * hidden, 3 * hidden), False

    def _rows(self) -> tuple[slice, slice, slice]:
        """Return the rows of all steps but the first walked, of the states those began with, and of the first."""
        batch, rows = self.batch, self.steps * self.batch
        later, first = slice(batch, rows), slice(0, batch)
        earlier, last = slice(0, rows - batch), slice(rows - batch, rows)
        return (earlier, later, last) if self.reverse else (later, earlier, first)

    def _multiply(self) -> None:
        later, earlier, first = self._rows()
        with products(self.shape.exact):
            torch.mm(self.x, self.of_x.t(), out=self.of_inputs)
            for columns, rows, shared in self._of_states():
                weight = self.of_h[rows].t()
                _product(self.gates[later, columns], self._states[earlier], weight, shared)
                if self.h0 is not None:
                    _product(self.gates[first, columns], self.h0, weight, shared)
                elif not shared:
                    self.gates[first, columns].zero_()

    def backward(self, saved: SavedOutputs, coming: OutputGradients, dy: Tensor | None, made: Gradients) -> Tensor:
        state = self.state
        recurrence = Recurrence(
            kind=self.shape.kind,
            reverse=self.reverse,
            exact=self.shape.exact,
            gates=self.gates.view(self.steps, self.batch, -1),
            weight=self.of_h,
            bias_ih=self.bias_ih,
            bias_hh=self.bias_hh,
            h0=self.h0,
            c0=self.c0,
            y=self.y,
            cells=at(saved.cells, state),
            dy=None if dy is None else side(self.shape, dy, state),
            dh_n=at(coming.h_n, state),
            dc_n=at(coming.c_n, state),
            dh0=at(made.h0, state),
            dc0=at(made.c0, state),
        )
        return recurrence_steps.backward(recurrence)

    def weight_gradients(self, parts: Tensor) -> list[Tensor]:
        later, earlier, first = self._rows()
        of_h = torch.empty_like(self.of_h)
        with products(self.shape.exact):
            of_x = summed_over_rows(self.of_inputs, self.x)
            for columns, rows, _ in self._of_states():
                of_h[rows] = summed_over_rows(self.gates[later, columns], self._states[earlier])
                if self.h0 is not None:
                    of_h[rows].addmm_(self.gates[first, columns].t(), self.h0)
        if not self.shape.bias:
            return [of_x, of_h]
        bias, hidden = parts.sum(0), self.shape.hidden
        if self.shape.kind == "lstm":
            return [of_x, of_h, bias, bias.clone()]
        return [of_x, of_h, bias[: 3 * hidden].clone(), torch.cat((bias[: 2 * hidden], bias[3 * hidden :]))]

    def input_gradient(self, gradient: Tensor | None) -> Tensor:
        with products(self.shape.exact):
            if gradient is None:
                return torch.mm(self.of_inputs, self.of_x).view(self.steps, self.batch, -1)
            gradient.view(-1, gradient.shape[2]).addmm_(self.of_inputs, self.of_x)
        return gradient


def summed_over_rows(left: Tensor, right: Tensor) -> Tensor:
    """Compute left.T @ right for many rows and few columns, in parts that fill the device, added in order."""
    rows = left.shape[0]
    tiles = -(-left.shape[1] // TILE) * -(-right.shape[1] // TILE)
    parts = min(TILES_AT_ONCE // tiles, rows // ROWS_OF_A_PART)
    if parts < 2:
        return torch.mm(left.t(), right)
    part_rows = rows // parts
    whole = part_rows * parts
    sides = (torch.unflatten(operand[:whole], 0, (parts, part_rows)) for operand in (left, right))
    total = torch.bmm(next(sides).transpose(1, 2), next(sides)).sum(0)
    return total if whole == rows else total.addmm_(left[whole:].t(), right[whole:])


def _product(out: Tensor, states: Tensor, weight: Tensor, add: bool) -> None:
    if add:
        out.addmm_(states, weight)
    else:
        torch.mm(states, weight, out=out)

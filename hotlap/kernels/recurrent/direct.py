"""All layers and directions, forward and backward, with as little host work as possible.

At small shapes a call costs the host more than the device, so nothing is made here that a kernel does not need:
kernels get addresses instead of views, and one allocation serves all that only they see. Forward keeps the gates of
every layer, and backward overwrites them with their gradients; a second backward through the same graph walks forward
again. Few features are multiplied inside the walks; many are one large product before them, and one after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from hotlap.kernels.recurrent.cuda_recurrence import pack_sums, pack_walk
from hotlap.kernels.recurrent.plans import Level, Plan, RowPartition, planned
from hotlap.kernels.recurrent.precision import products
from hotlap.kernels.recurrent.stack import (
    Gradients,
    Needs,
    OutputGradients,
    SavedOutputs,
    Shape,
    StackInputs,
    input_of,
    through_dropout,
)

FLOAT = 4


def dense(tensor: Tensor | None) -> Tensor | None:
    return tensor if tensor is None or tensor.is_contiguous() else tensor.contiguous()


def _address(tensor: Tensor | None, offset: int = 0) -> int:
    """Return the address, or 0 if there is no tensor or an empty one."""
    first = 0 if tensor is None else tensor.data_ptr()
    return first and first + offset


@cache
def _nothing(device: torch.device) -> Tensor:
    """Return a shared empty tensor, neither written nor returned; made for good, even if inference mode comes first."""
    with torch.inference_mode(False):
        return torch.empty(0, device=device)


def _weights(shape: Shape, flat: Sequence[Tensor], state: int) -> list[Tensor]:
    """Return the weights of inputs, of states, and both biases if there are any, as kernels read them."""
    count = 4 if shape.bias else 2
    mine = flat if len(flat) == count else flat[count * state : count * (state + 1)]
    return [weight if weight.is_contiguous() else weight.contiguous() for weight in mine]


def plan_for(shape: Shape, x: Tensor) -> Plan:
    steps, batch, features = x.shape
    return planned(shape, steps, batch, features, x.get_device())


# Forward


def allocate(plan: Plan, x: Tensor, keep: bool) -> SavedOutputs:
    """Allocate like stack.allocate, without a call for what is empty. Sizes given one by one cost the host least."""
    shape, nothing = plan.shape, _nothing(x.device)
    steps, batch, wide, above = plan.steps, plan.batch, plan.wide, shape.layers - 1
    return SavedOutputs(
        x.new_empty(steps, batch, wide),
        x.new_empty(shape.states, batch, shape.hidden),
        x.new_empty(shape.states, batch, shape.hidden) if shape.kind == "lstm" else nothing,
        x.new_empty(above, steps, batch, wide) if above else nothing,
        x.new_empty(shape.states, steps, batch, plan.kept_width) if keep else nothing,
        x.new_empty(above, steps, batch, wide, dtype=torch.bool) if above and shape.dropout > 0 else nothing,
    )


def forward(plan: Plan, given: StackInputs, made: SavedOutputs) -> SavedOutputs:
    x, shape = given.x, plan.shape
    h0, c0, stream = dense(given.h0), dense(given.c0), plan.stream()
    for layer in range(shape.layers):
        last = layer == shape.layers - 1
        level, y = plan.later if layer else plan.first, made.y if last else made.inner[layer]
        for direction in range(shape.directions):
            _walk(plan, level, given, made, layer * shape.directions + direction, x, y, h0, c0, stream)
        x = y
        if shape.dropout > 0 and not last:
            x, made.masks[layer] = torch.native_dropout(y, shape.dropout, True)
    return made


def _walk(
    plan: Plan, level: Level, given: StackInputs, made: SavedOutputs, state: int, x: Tensor, y: Tensor,
    h0: Tensor | None, c0: Tensor | None, stream: int,
) -> None:  # fmt: skip
    shape = plan.shape
    of_x, of_h, *biases = _weights(shape, given.flat, state)
    bias_ih, bias_hh = [bias.data_ptr() for bias in biases] or (0, 0)
    reverse = state % shape.directions
    if level.forward.walked:
        x_step, x_row, _ = x.stride()
    else:
        x = _products(plan, level, x, of_x, made.cells, state)
        x_row = int(x.stride(0))
        x_step = plan.batch * x_row
    at = state * plan.state_bytes
    level.forward(stream, pack_walk(
        x.data_ptr(), of_x.data_ptr(), of_h.data_ptr(), bias_ih, bias_hh, _address(h0, at), _address(c0, at),
        y.data_ptr() + reverse * shape.hidden * FLOAT, _address(made.cells, state * plan.kept * FLOAT),
        made.h_n.data_ptr() + at, _address(made.c_n, at), 0, 0, 0, 0, 0, 0, 0, 0,
        x_step, x_row, plan.wide, 0, 0, plan.steps, plan.batch, reverse, 0,
    ))  # fmt: skip


def _products(plan: Plan, level: Level, x: Tensor, of_x: Tensor, cells: Tensor, state: int) -> Tensor:
    """Compute the inputs' part of all gates; in place if gates are kept, since the walk reads each before it writes."""
    width = plan.shape.gates * plan.shape.hidden
    with products(level.exact_forward):
        if cells.numel() == 0:
            return torch.mm(x.reshape(-1, level.features), of_x.t())
        first = int(cells.storage_offset()) + state * plan.kept
        place = cells.as_strided((plan.steps * plan.batch, width), (plan.kept_width, 1), first)
        return torch.mm(x.reshape(-1, level.features), of_x.t(), out=place)


def again(plan: Plan, given: StackInputs, saved: SavedOutputs) -> Tensor:
    """Compute the gates again, to the same bits: an earlier backward pass has overwritten them."""
    shape, y = plan.shape, torch.empty_like(saved.y)
    state = y.new_empty((shape.states, plan.batch, shape.hidden))
    made = SavedOutputs(y, state, torch.empty_like(state), saved.inner, torch.empty_like(saved.cells), saved.masks)
    h0, c0, stream = dense(given.h0), dense(given.c0), plan.stream()
    for layer in range(shape.layers):
        x, level = input_of(shape, given, saved, layer), plan.later if layer else plan.first
        for direction in range(shape.directions):
            _walk(plan, level, given, made, layer * shape.directions + direction, x, y, h0, c0, stream)
    return made.cells


# Backward


class Gates(NamedTuple):
    """The gradients of the gates, and what the walk summed in parts."""

    tensor: Tensor
    row: int  # floats from row to row; 4 × hidden of them are the gradients
    first: int  # where they begin in the tensor's memory
    parts: Tensor


def backward(
    plan: Plan, given: StackInputs, saved: SavedOutputs, coming: OutputGradients, needs: Needs, overwrite: bool = False
) -> Gradients:
    """Run the backward pass; with `overwrite`, saved.cells is no longer needed."""
    shape, back = plan.shape, Backward(plan, given, saved, coming, needs, overwrite)
    by_state: list[list[Tensor]] = [[] for _ in range(shape.states)]
    for layer in range(shape.layers - 1, -1, -1):
        back.enter(layer)
        for direction in range(shape.directions):
            state = layer * shape.directions + direction
            weights = _weights(shape, given.flat, state)
            gates = back.walk(state, weights)
            by_state[state] = back.weight_gradients(state, weights, gates)
            if layer > 0 or needs.x:
                back.input_gradient(weights[0], gates)
        back.dy, back.dx = through_dropout(shape, saved, layer, back.dx), None
    back.made.flat = by_state[0] if shape.states == 1 else [gradient for weights in by_state for gradient in weights]
    back.made.x = back.dy if needs.x else None
    return back.made


class Backward:
    """Goes through the layers backward; `walk` leaves the gradients of the gates, from which the others follow."""

    def __init__(
        self,
        plan: Plan,
        given: StackInputs,
        saved: SavedOutputs,
        coming: OutputGradients,
        needs: Needs,
        overwrite: bool,
    ) -> None:
        lstm, sizes = plan.shape.kind == "lstm", (plan.shape.states, plan.batch, plan.shape.hidden)
        self.plan, self.given, self.saved, self.stream = plan, given, saved, plan.stream()
        self.overwrite = overwrite
        self.h0, self.c0 = dense(given.h0), dense(given.c0)
        self.dy = coming.y
        self.dx: Tensor | None = None
        self.dh_n, self.dc_n = dense(coming.h_n), dense(coming.c_n) if lstm else None
        dh0 = saved.y.new_empty(sizes) if needs.h0 else None
        self.made = Gradients(None, dh0, saved.y.new_empty(sizes) if needs.c0 and lstm else None, [])
        self.level, self.x, self.y = plan.first, given.x, saved.y

    def enter(self, layer: int) -> None:
        shape = self.plan.shape
        self.level = self.plan.later if layer else self.plan.first
        self.x = input_of(shape, self.given, self.saved, layer)
        self.y = self.saved.y if layer == shape.layers - 1 else self.saved.inner[layer]
        if self.dy is not None and self.dy.stride(2) != 1:
            self.dy = self.dy.contiguous()

    def _gates(self, state: int) -> Gates:
        plan, four, parts = self.plan, 4 * self.plan.shape.hidden, self.y.new_empty(self.level.work)
        if not self.overwrite:
            return Gates(self.y.new_empty(plan.steps * plan.batch * four), four, 0, parts)
        cells = self.saved.cells
        return Gates(cells, plan.kept_width, int(cells.storage_offset()) + state * plan.kept, parts)

    def walk(self, state: int, weights: list[Tensor]) -> Gates:
        plan, level, shape, made, dy = self.plan, self.level, self.plan.shape, self.made, self.dy
        reverse, at, offset = state % shape.directions, state * plan.state_bytes, state * plan.kept * FLOAT
        gates = self._gates(state)
        to, parts = gates.tensor.data_ptr() + offset * self.overwrite, gates.parts.data_ptr()
        x_step, x_row, _ = self.x.stride()
        dy_step, dy_row = (0, 0) if dy is None else dy.stride()[:2]
        side = reverse * shape.hidden * FLOAT
        level.backward(self.stream, pack_walk(
            self.x.data_ptr(), 0, weights[1].data_ptr(), 0, 0, _address(self.h0, at), _address(self.c0, at),
            self.y.data_ptr() + side, self.saved.cells.data_ptr() + offset, 0, 0, _address(dy, side),
            _address(self.dh_n, at), _address(self.dc_n, at), to, _address(made.h0, at), _address(made.c0, at),
            parts, parts + level.parts * FLOAT, x_step, x_row, plan.wide, dy_step, dy_row,
            plan.steps, plan.batch, reverse, gates.row,
        ))  # fmt: skip
        return gates

    def weight_gradients(self, state: int, weights: list[Tensor], gates: Gates) -> list[Tensor]:
        """Return gradients as torch.nn lists weights. One kernel adds parts of large products and those of the walk."""
        plan, level, shape = self.plan, self.level, self.plan.shape
        parts = gates.parts.data_ptr()
        states, of_states, state_parts = None, parts + level.parts * FLOAT, level.walk_parts
        if not level.summed:
            states, state_parts = self._of_states(state, gates)
            of_states = _address(states)
        inputs, input_parts = (None, 0) if level.backward.walked else self._of_inputs(gates)
        made = [torch.empty_like(weight) for weight in weights]  # dense, as _weights made them
        biases = [bias.data_ptr() for bias in made[2:]] or (0, 0)
        plan.sums.launch(level.sums_blocks, plan.sums_threads, self.stream, pack_sums(
            parts, of_states, _address(inputs), made[0].data_ptr(), made[1].data_ptr(), *biases, level.walk_parts,
            state_parts, input_parts, level.backward.walked, shape.hidden, level.features, shape.kind == "lstm",
            level.summed,
        ))  # fmt: skip
        return made

    def _of_states(self, state: int, gates: Gates) -> tuple[Tensor | None, int]:
        """Multiply the gates of each step with the state it began with: the first one walked began with h0."""
        plan, shape, y, h0 = self.plan, self.plan.shape, self.y, self.h0
        four, batch, wide, reverse = 4 * shape.hidden, plan.batch, plan.wide, state % shape.directions
        later = gates.first if reverse else gates.first + batch * gates.row
        earlier = int(y.storage_offset()) + reverse * (batch * wide + shape.hidden)
        left, right = (gates.tensor, gates.row, four, later), (y, wide, shape.hidden, earlier)
        begins = gates.first + reverse * (plan.steps - 1) * batch * gates.row
        with products(self.level.exact):
            if h0 is None:
                return in_parts(self.level.states, left, right)
            of_first = gates.tensor.as_strided((four, batch), (1, gates.row), begins)
            return in_parts(self.level.states, left, right, (of_first, h0[state]))

    def _of_inputs(self, gates: Gates) -> tuple[Tensor | None, int]:
        shape, features, x = self.plan.shape, self.level.features, self.x.contiguous()
        left = (gates.tensor, gates.row, shape.gates * shape.hidden, gates.first)
        with products(self.level.exact_inputs):
            return in_parts(self.level.inputs, left, (x, features, features, int(x.storage_offset())))

    def input_gradient(self, of_x: Tensor, gates: Gates) -> None:
        """Add up the gradient of the input over both directions, one after the other."""
        plan, shape = self.plan, self.plan.shape
        sizes = plan.steps * plan.batch, shape.gates * shape.hidden
        of_gates = gates.tensor.as_strided(sizes, (gates.row, 1), gates.first)
        with products(self.level.exact):
            if self.dx is None:
                self.dx = torch.mm(of_gates, of_x).view(plan.steps, plan.batch, self.level.features)
            else:
                self.dx.view(-1, self.level.features).addmm_(of_gates, of_x)


Rows = tuple[Tensor, int, int, int]  # a tensor, floats from row to row, columns, and where the first row begins


def in_parts(
    parting: RowPartition, left: Rows, right: Rows, more: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor | None, int]:
    """Compute left.T @ right in parts, one after the other; return them and how many. `more` is one more product."""
    (a, a_row, a_columns, a_first), (b, b_row, b_columns, b_first) = left, right
    parts, part_rows, rest = parting.parts, parting.each, parting.rest
    every = parts + (rest > 0) + (more is not None)
    if every == 0:
        return None, 0
    if parts > 0:
        a_parts = a.as_strided((parts, a_columns, part_rows), (part_rows * a_row, 1, a_row), a_first)
        b_parts = b.as_strided((parts, part_rows, b_columns), (part_rows * b_row, b_row, 1), b_first)
        if every == parts:
            return torch.bmm(a_parts, b_parts), parts
    made = a.new_empty((every, a_columns, b_columns))
    if parts > 0:
        torch.bmm(a_parts, b_parts, out=made[:parts])
    if rest > 0:
        done = parts * part_rows
        a_rest = a.as_strided((a_columns, rest), (1, a_row), a_first + done * a_row)
        b_rest = b.as_strided((rest, b_columns), (b_row, 1), b_first + done * b_row)
        torch.mm(a_rest, b_rest, out=made[parts])
    if more is not None:
        torch.mm(*more, out=made[every - 1])
    return made, every

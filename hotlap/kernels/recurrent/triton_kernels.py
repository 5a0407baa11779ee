"""Triton kernels that walk a layer where CUDA C++ cannot be compiled: one program walks all steps of a few batch rows.

The weights of each gate are loaded once, as depth × column, and stay on the chip. All kernels take the same tensors as
`struct Walk` in kernels.cu. Imported only if Triton is installed.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, N803, SIM108 constants are large and branches are branches in Triton

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _product(state, weight, DOT: tl.constexpr, PRECISION: tl.constexpr):
    if DOT:
        value = tl.dot(state, weight, input_precision=PRECISION)
    else:
        value = tl.sum(state[:, :, None] * weight[None, :, :], axis=1)
    return value


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _weight(weight, gate, HIDDEN: tl.constexpr, WIDE: tl.constexpr, BACKWARD: tl.constexpr):
    """Load a gate's weights, transposed for forward; backward sums over a gate's units and reads them as they lie."""
    first, second = tl.arange(0, WIDE)[:, None], tl.arange(0, WIDE)[None, :]
    inside = (first < HIDDEN) & (second < HIDDEN)
    if BACKWARD:
        value = tl.load(weight + (gate * HIDDEN + first) * HIDDEN + second, mask=inside, other=0.0)
    else:
        value = tl.load(weight + (gate * HIDDEN + second) * HIDDEN + first, mask=inside, other=0.0)
    return value


@triton.jit
def _bias(bias, gate, HIDDEN: tl.constexpr, WIDE: tl.constexpr):
    unit = tl.arange(0, WIDE)
    if bias is None:
        value = tl.zeros((WIDE,), tl.float32)[None, :]
    else:
        value = tl.load(bias + gate * HIDDEN + unit, mask=unit < HIDDEN, other=0.0)[None, :]
    return value


@triton.jit
def _state(state, place, inside, ROWS: tl.constexpr, WIDE: tl.constexpr):
    if state is None:
        value = tl.zeros((ROWS, WIDE), tl.float32)
    else:
        value = tl.load(state + place, mask=inside, other=0.0)
    return value


@triton.jit
def lstm_forward(
    gates, weight, bias_ih, bias_hh, h0, c0, y, cells, h_n, c_n, gates_row, y_row, steps, batch, reverse,
    KEEP: tl.constexpr,
    HIDDEN: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sample = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    unit = tl.arange(0, WIDE)[None, :]
    inside = (sample < batch) & (unit < HIDDEN)
    of_i = _weight(weight, 0, HIDDEN, WIDE, False)
    of_f = _weight(weight, 1, HIDDEN, WIDE, False)
    of_g = _weight(weight, 2, HIDDEN, WIDE, False)
    of_o = _weight(weight, 3, HIDDEN, WIDE, False)
    bias_i = _bias(bias_ih, 0, HIDDEN, WIDE) + _bias(bias_hh, 0, HIDDEN, WIDE)
    bias_f = _bias(bias_ih, 1, HIDDEN, WIDE) + _bias(bias_hh, 1, HIDDEN, WIDE)
    bias_g = _bias(bias_ih, 2, HIDDEN, WIDE) + _bias(bias_hh, 2, HIDDEN, WIDE)
    bias_o = _bias(bias_ih, 3, HIDDEN, WIDE) + _bias(bias_hh, 3, HIDDEN, WIDE)
    h = _state(h0, sample * HIDDEN + unit, inside, ROWS, WIDE)
    c = _state(c0, sample * HIDDEN + unit, inside, ROWS, WIDE)
    for step in range(steps):
        t = step + reverse * (steps - 1 - 2 * step)
        row = t.to(tl.int64) * batch + sample
        x = gates + row * gates_row + unit
        i = tl.load(x, mask=inside, other=0.0) + _product(h, of_i, DOT, PRECISION)
        f = tl.load(x + HIDDEN, mask=inside, other=0.0) + _product(h, of_f, DOT, PRECISION)
        g = tl.load(x + 2 * HIDDEN, mask=inside, other=0.0) + _product(h, of_g, DOT, PRECISION)
        o = tl.load(x + 3 * HIDDEN, mask=inside, other=0.0) + _product(h, of_o, DOT, PRECISION)
        if KEEP:
            tl.store(x, i, mask=inside)
            tl.store(x + HIDDEN, f, mask=inside)
            tl.store(x + 2 * HIDDEN, g, mask=inside)
            tl.store(x + 3 * HIDDEN, o, mask=inside)
        i, f = tl.sigmoid(i + bias_i), tl.sigmoid(f + bias_f)
        g, o = _tanh(g + bias_g), tl.sigmoid(o + bias_o)
        c = f * c + i * g
        h = tl.where(inside, o * _tanh(c), 0.0)
        tl.store(y + row * y_row + unit, h, mask=inside)
        if cells is not None:
            tl.store(cells + row * HIDDEN + unit, c, mask=inside)
    tl.store(h_n + sample * HIDDEN + unit, h, mask=inside)
    tl.store(c_n + sample * HIDDEN + unit, c, mask=inside)


@triton.jit
def lstm_backward(
    gates, weight, bias_ih, bias_hh, c0, cells, dy, dh_n, dc_n, dh0, dc0, dbias, dy_step, dy_row, steps, batch, reverse,
    HIDDEN: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sample = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    unit = tl.arange(0, WIDE)[None, :]
    inside = (sample < batch) & (unit < HIDDEN)
    of_i = _weight(weight, 0, HIDDEN, WIDE, True)
    of_f = _weight(weight, 1, HIDDEN, WIDE, True)
    of_g = _weight(weight, 2, HIDDEN, WIDE, True)
    of_o = _weight(weight, 3, HIDDEN, WIDE, True)
    bias_i = _bias(bias_ih, 0, HIDDEN, WIDE) + _bias(bias_hh, 0, HIDDEN, WIDE)
    bias_f = _bias(bias_ih, 1, HIDDEN, WIDE) + _bias(bias_hh, 1, HIDDEN, WIDE)
    bias_g = _bias(bias_ih, 2, HIDDEN, WIDE) + _bias(bias_hh, 2, HIDDEN, WIDE)
    bias_o = _bias(bias_ih, 3, HIDDEN, WIDE) + _bias(bias_hh, 3, HIDDEN, WIDE)
    dh = _state(dh_n, sample * HIDDEN + unit, inside, ROWS, WIDE)
    dc = _state(dc_n, sample * HIDDEN + unit, inside, ROWS, WIDE)
    sum_i, sum_f = tl.zeros((ROWS, WIDE), tl.float32), tl.zeros((ROWS, WIDE), tl.float32)
    sum_g, sum_o = tl.zeros((ROWS, WIDE), tl.float32), tl.zeros((ROWS, WIDE), tl.float32)
    for back in range(steps):
        step = steps - 1 - back
        t = step + reverse * (steps - 1 - 2 * step)
        row = t.to(tl.int64) * batch + sample
        x = gates + row * 4 * HIDDEN + unit
        i = tl.sigmoid(tl.load(x, mask=inside, other=0.0) + bias_i)
        f = tl.sigmoid(tl.load(x + HIDDEN, mask=inside, other=0.0) + bias_f)
        g = _tanh(tl.load(x + 2 * HIDDEN, mask=inside, other=0.0) + bias_g)
        o = tl.sigmoid(tl.load(x + 3 * HIDDEN, mask=inside, other=0.0) + bias_o)
        c = _tanh(tl.load(cells + row * HIDDEN + unit, mask=inside, other=0.0))
        earlier = row - (1 - 2 * reverse) * batch
        before = tl.load(cells + earlier * HIDDEN + unit, mask=inside & (sample * 0 + step > 0), other=0.0)
        if c0 is not None:
            before += tl.load(c0 + sample * HIDDEN + unit, mask=inside & (sample * 0 + step == 0), other=0.0)
        if dy is not None:
            dh += tl.load(dy + t.to(tl.int64) * dy_step + sample * dy_row + unit, mask=inside, other=0.0)
        dc += dh * o * (1 - c * c)
        d_i = tl.where(inside, dc * g * i * (1 - i), 0.0)
        d_f = tl.where(inside, dc * before * f * (1 - f), 0.0)
        d_g = tl.where(inside, dc * i * (1 - g * g), 0.0)
        d_o = tl.where(inside, dh * c * o * (1 - o), 0.0)
        tl.store(x, d_i, mask=inside)
        tl.store(x + HIDDEN, d_f, mask=inside)
        tl.store(x + 2 * HIDDEN, d_g, mask=inside)
        tl.store(x + 3 * HIDDEN, d_o, mask=inside)
        sum_i, sum_f, sum_g, sum_o = sum_i + d_i, sum_f + d_f, sum_g + d_g, sum_o + d_o
        dc = dc * f
        dh = _product(d_i, of_i, DOT, PRECISION) + _product(d_f, of_f, DOT, PRECISION)
        dh += _product(d_g, of_g, DOT, PRECISION) + _product(d_o, of_o, DOT, PRECISION)
    tl.store(dh0 + sample * HIDDEN + unit, dh, mask=inside)
    tl.store(dc0 + sample * HIDDEN + unit, dc, mask=inside)
    to = dbias + tl.program_id(0) * 4 * HIDDEN + tl.arange(0, WIDE)
    fits = tl.arange(0, WIDE) < HIDDEN
    tl.store(to, tl.sum(sum_i, 0), mask=fits)
    tl.store(to + HIDDEN, tl.sum(sum_f, 0), mask=fits)
    tl.store(to + 2 * HIDDEN, tl.sum(sum_g, 0), mask=fits)
    tl.store(to + 3 * HIDDEN, tl.sum(sum_o, 0), mask=fits)


@triton.jit
def gru_forward(
    gates, weight, bias_ih, bias_hh, h0, y, h_n, gates_row, y_row, steps, batch, reverse, KEEP: tl.constexpr,
    HIDDEN: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sample = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    unit = tl.arange(0, WIDE)[None, :]
    inside = (sample < batch) & (unit < HIDDEN)
    of_r = _weight(weight, 0, HIDDEN, WIDE, False)
    of_z = _weight(weight, 1, HIDDEN, WIDE, False)
    of_n = _weight(weight, 2, HIDDEN, WIDE, False)
    bias_r = _bias(bias_ih, 0, HIDDEN, WIDE) + _bias(bias_hh, 0, HIDDEN, WIDE)
    bias_z = _bias(bias_ih, 1, HIDDEN, WIDE) + _bias(bias_hh, 1, HIDDEN, WIDE)
    bias_x, bias_h = _bias(bias_ih, 2, HIDDEN, WIDE), _bias(bias_hh, 2, HIDDEN, WIDE)
    h = _state(h0, sample * HIDDEN + unit, inside, ROWS, WIDE)
    for step in range(steps):
        t = step + reverse * (steps - 1 - 2 * step)
        row = t.to(tl.int64) * batch + sample
        x = gates + row * gates_row + unit
        r = tl.load(x, mask=inside, other=0.0) + _product(h, of_r, DOT, PRECISION)
        z = tl.load(x + HIDDEN, mask=inside, other=0.0) + _product(h, of_z, DOT, PRECISION)
        n = tl.load(x + 2 * HIDDEN, mask=inside, other=0.0) + bias_x
        of_state = _product(h, of_n, DOT, PRECISION)
        if KEEP:
            tl.store(x, r, mask=inside)
            tl.store(x + HIDDEN, z, mask=inside)
            tl.store(x + 3 * HIDDEN, of_state, mask=inside)
        r, z = tl.sigmoid(r + bias_r), tl.sigmoid(z + bias_z)
        n = _tanh(n + r * (of_state + bias_h))
        h = tl.where(inside, n + z * (h - n), 0.0)
        tl.store(y + row * y_row + unit, h, mask=inside)
    tl.store(h_n + sample * HIDDEN + unit, h, mask=inside)


@triton.jit
def gru_backward(
    gates, weight, bias_ih, bias_hh, h0, y, dy, dh_n, dh0, dbias, y_row, dy_step, dy_row, steps, batch, reverse,
    HIDDEN: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sample = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    unit = tl.arange(0, WIDE)[None, :]
    inside = (sample < batch) & (unit < HIDDEN)
    of_r = _weight(weight, 0, HIDDEN, WIDE, True)
    of_z = _weight(weight, 1, HIDDEN, WIDE, True)
    of_n = _weight(weight, 2, HIDDEN, WIDE, True)
    bias_r = _bias(bias_ih, 0, HIDDEN, WIDE) + _bias(bias_hh, 0, HIDDEN, WIDE)
    bias_z = _bias(bias_ih, 1, HIDDEN, WIDE) + _bias(bias_hh, 1, HIDDEN, WIDE)
    bias_x, bias_h = _bias(bias_ih, 2, HIDDEN, WIDE), _bias(bias_hh, 2, HIDDEN, WIDE)
    dh = _state(dh_n, sample * HIDDEN + unit, inside, ROWS, WIDE)
    sum_r, sum_z = tl.zeros((ROWS, WIDE), tl.float32), tl.zeros((ROWS, WIDE), tl.float32)
    sum_n, sum_h = tl.zeros((ROWS, WIDE), tl.float32), tl.zeros((ROWS, WIDE), tl.float32)
    for back in range(steps):
        step = steps - 1 - back
        t = step + reverse * (steps - 1 - 2 * step)
        row = t.to(tl.int64) * batch + sample
        x = gates + row * 4 * HIDDEN + unit
        r = tl.sigmoid(tl.load(x, mask=inside, other=0.0) + bias_r)
        z = tl.sigmoid(tl.load(x + HIDDEN, mask=inside, other=0.0) + bias_z)
        of_state = tl.load(x + 3 * HIDDEN, mask=inside, other=0.0) + bias_h
        n = _tanh(tl.load(x + 2 * HIDDEN, mask=inside, other=0.0) + bias_x + r * of_state)
        earlier = row - (1 - 2 * reverse) * batch
        before = tl.load(y + earlier * y_row + unit, mask=inside & (sample * 0 + step > 0), other=0.0)
        if h0 is not None:
            before += tl.load(h0 + sample * HIDDEN + unit, mask=inside & (sample * 0 + step == 0), other=0.0)
        if dy is not None:
            dh += tl.load(dy + t.to(tl.int64) * dy_step + sample * dy_row + unit, mask=inside, other=0.0)
        d_z = tl.where(inside, dh * (before - n) * z * (1 - z), 0.0)
        d_n = tl.where(inside, dh * (1 - z) * (1 - n * n), 0.0)
        d_r = d_n * of_state * r * (1 - r)
        d_h = d_n * r
        tl.store(x, d_r, mask=inside)
        tl.store(x + HIDDEN, d_z, mask=inside)
        tl.store(x + 2 * HIDDEN, d_n, mask=inside)
        tl.store(x + 3 * HIDDEN, d_h, mask=inside)
        sum_r, sum_z, sum_n, sum_h = sum_r + d_r, sum_z + d_z, sum_n + d_n, sum_h + d_h
        dh = dh * z + _product(d_r, of_r, DOT, PRECISION)
        dh += _product(d_z, of_z, DOT, PRECISION) + _product(d_h, of_n, DOT, PRECISION)
    tl.store(dh0 + sample * HIDDEN + unit, dh, mask=inside)
    to = dbias + tl.program_id(0) * 4 * HIDDEN + tl.arange(0, WIDE)
    fits = tl.arange(0, WIDE) < HIDDEN
    tl.store(to, tl.sum(sum_r, 0), mask=fits)
    tl.store(to + HIDDEN, tl.sum(sum_z, 0), mask=fits)
    tl.store(to + 2 * HIDDEN, tl.sum(sum_n, 0), mask=fits)
    tl.store(to + 3 * HIDDEN, tl.sum(sum_h, 0), mask=fits)

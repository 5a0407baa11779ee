"""One recurrence over all steps of one layer in one direction, in plain torch: what goes in and comes out.

Forward, `gates` holds the products of the inputs (no biases) and `y`, `cells`, `h_n`, `c_n` are filled. Backward,
`gates` holds all products, of inputs and states, and is overwritten by their gradients; for a GRU these are r, z, n of
the inputs and n of the state, because the reset gate stands between the two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotlap.kernels.recurrent.recurrence import Recurrence


def _bias(layer: Recurrence, gates: int) -> tuple[Tensor | float, Tensor | float]:
    zero = layer.gates.new_zeros(gates * layer.hidden)
    return (zero if layer.bias_ih is None else layer.bias_ih), (zero if layer.bias_hh is None else layer.bias_hh)


def forward(layer: Recurrence) -> None:
    of_x, of_h = _bias(layer, 4 if layer.kind == "lstm" else 3)
    h = layer.gates.new_zeros(layer.batch, layer.hidden) if layer.h0 is None else layer.h0
    c = torch.zeros_like(h) if layer.c0 is None else layer.c0
    for t in layer.order:
        product = h @ layer.weight.t()
        x, recurrent = layer.gates[t][:, : len(layer.weight)] + of_x, product + of_h
        if layer.keep:
            _leave(layer, t, product)
        if layer.kind == "lstm":
            i, f, g, o = (x + recurrent).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            if layer.cells is not None:
                layer.cells[t] = c
        else:
            (xr, xz, xn), (hr, hz, hn) = x.chunk(3, 1), recurrent.chunk(3, 1)
            n = (xn + (xr + hr).sigmoid() * hn).tanh()
            h = n + (xz + hz).sigmoid() * (h - n)
        layer.y[t] = h
    assert layer.h_n is not None
    layer.h_n.copy_(h)
    if layer.kind == "lstm":
        assert layer.c_n is not None
        layer.c_n.copy_(c)


def _leave(layer: Recurrence, t: int, product: Tensor) -> None:
    shared = layer.hidden * (4 if layer.kind == "lstm" else 2)
    layer.gates[t][:, :shared] += product[:, :shared]
    if layer.kind == "gru":
        layer.gates[t][:, 3 * layer.hidden :] = product[:, shared:]


def backward(layer: Recurrence) -> Tensor:
    """Return the gradients of the biases, as one part of 4 × hidden."""
    zeros = layer.gates.new_zeros(layer.batch, layer.hidden)
    dh = zeros if layer.dh_n is None else layer.dh_n
    dc = zeros if layer.dc_n is None else layer.dc_n
    order = list(layer.order)
    for place in range(layer.steps - 1, -1, -1):
        t, before = order[place], order[place - 1] if place else None
        dh = dh if layer.dy is None else dh + layer.dy[t]
        step = _lstm_step if layer.kind == "lstm" else _gru_step
        dh, dc = step(layer, t, before, dh, dc)
    if layer.dh0 is not None:
        layer.dh0.copy_(dh)
    if layer.dc0 is not None:
        layer.dc0.copy_(dc)
    return layer.gates.sum((0, 1)).unsqueeze(0)


def _lstm_step(layer: Recurrence, t: int, before: int | None, dh: Tensor, dc: Tensor) -> tuple[Tensor, Tensor]:
    of_x, of_h = _bias(layer, 4)
    assert layer.cells is not None
    earlier = layer.c0 if before is None else layer.cells[before]
    earlier = torch.zeros_like(dh) if earlier is None else earlier
    a = (layer.gates[t] + of_x + of_h).chunk(4, 1)
    i, f, g, o, tc = a[0].sigmoid(), a[1].sigmoid(), a[2].tanh(), a[3].sigmoid(), layer.cells[t].tanh()
    dc = dc + dh * o * (1 - tc * tc)
    parts = (dc * g * i * (1 - i), dc * earlier * f * (1 - f), dc * i * (1 - g * g), dh * tc * o * (1 - o))
    layer.gates[t] = torch.cat(parts, 1)
    return layer.gates[t] @ layer.weight, dc * f


def _gru_step(layer: Recurrence, t: int, before: int | None, dh: Tensor, dc: Tensor) -> tuple[Tensor, Tensor]:
    of_x, of_h = (bias.chunk(3) for bias in _bias(layer, 3))  # type: ignore[union-attr]
    earlier = layer.h0 if before is None else layer.y[before]
    earlier = torch.zeros_like(dh) if earlier is None else earlier
    a = layer.gates[t].chunk(4, 1)
    r, z, of_state = (a[0] + of_x[0] + of_h[0]).sigmoid(), (a[1] + of_x[1] + of_h[1]).sigmoid(), a[3] + of_h[2]
    n = (a[2] + of_x[2] + r * of_state).tanh()
    dz, dn = dh * (earlier - n) * z * (1 - z), dh * (1 - z) * (1 - n * n)
    dr = dn * of_state * r * (1 - r)
    layer.gates[t] = torch.cat((dr, dz, dn, dn * r), 1)
    return torch.cat((dr, dz, dn * r), 1) @ layer.weight + dh * z, dc

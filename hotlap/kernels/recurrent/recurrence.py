"""One walk over all steps of one layer in one direction, in plain torch or by Triton: what goes in and comes out.

Forward, `gates` holds the products of the inputs (no biases) and `y`, `cells`, `h_n`, `c_n` are filled. Backward,
`gates` holds all products, of inputs and states, and is overwritten by their gradients; for a GRU these are r, z, n of
the inputs and n of the state, because the reset gate stands between the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hotlap.kernels.recurrent.geometry import parse


@dataclass
class Walk:
    kind: str
    reverse: bool
    exact: bool  # accurate fp32 functions, no TF32
    gates: Tensor  # steps × batch × (gates × hidden), forward of any row length; backward 4 × hidden
    weight: Tensor  # (gates × hidden) × hidden
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    h0: Tensor | None
    c0: Tensor | None
    y: Tensor  # steps × batch × hidden; rows may be wider than hidden
    cells: Tensor | None  # None: nothing will go backward
    h_n: Tensor | None = None  # forward
    c_n: Tensor | None = None
    keep: bool = False  # forward leaves in `gates`, 4 × hidden wide, what backward begins with
    dy: Tensor | None = None  # backward; any strides but the last
    dh_n: Tensor | None = None
    dc_n: Tensor | None = None
    dh0: Tensor | None = None
    dc0: Tensor | None = None

    @property
    def steps(self) -> int:
        return int(self.gates.shape[0])

    @property
    def batch(self) -> int:
        return int(self.gates.shape[1])

    @property
    def hidden(self) -> int:
        return int(self.weight.shape[1])

    @property
    def order(self) -> range:
        return range(self.steps - 1, -1, -1) if self.reverse else range(self.steps)


def forward(name: str, walk: Walk) -> None:
    """By the variant of this name."""
    variant = parse(name)
    if variant.engine == "triton":
        from hotlap.kernels.recurrent import triton_recurrence

        triton_recurrence.forward(variant, walk)
    else:
        _forward(walk)


def backward(name: str, walk: Walk) -> Tensor:
    """Gradients of the biases, as n × (4 × hidden) parts to be summed in order."""
    variant = parse(name)
    if variant.engine == "triton":
        from hotlap.kernels.recurrent import triton_recurrence

        return triton_recurrence.backward(variant, walk)
    return _backward(walk)


def _bias(walk: Walk, gates: int) -> tuple[Tensor | float, Tensor | float]:
    zero = walk.gates.new_zeros(gates * walk.hidden)
    return (zero if walk.bias_ih is None else walk.bias_ih), (zero if walk.bias_hh is None else walk.bias_hh)


def _forward(walk: Walk) -> None:
    of_x, of_h = _bias(walk, 4 if walk.kind == "lstm" else 3)
    h = walk.gates.new_zeros(walk.batch, walk.hidden) if walk.h0 is None else walk.h0
    c = torch.zeros_like(h) if walk.c0 is None else walk.c0
    for t in walk.order:
        product = h @ walk.weight.t()
        x, recurrent = walk.gates[t][:, : len(walk.weight)] + of_x, product + of_h
        if walk.keep:
            _leave(walk, t, product)
        if walk.kind == "lstm":
            i, f, g, o = (x + recurrent).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            if walk.cells is not None:
                walk.cells[t] = c
        else:
            (xr, xz, xn), (hr, hz, hn) = x.chunk(3, 1), recurrent.chunk(3, 1)
            n = (xn + (xr + hr).sigmoid() * hn).tanh()
            h = n + (xz + hz).sigmoid() * (h - n)
        walk.y[t] = h
    assert walk.h_n is not None
    walk.h_n.copy_(h)
    if walk.kind == "lstm":
        assert walk.c_n is not None
        walk.c_n.copy_(c)


def _leave(walk: Walk, t: int, product: Tensor) -> None:
    shared = walk.hidden * (4 if walk.kind == "lstm" else 2)
    walk.gates[t][:, :shared] += product[:, :shared]
    if walk.kind == "gru":
        walk.gates[t][:, 3 * walk.hidden :] = product[:, shared:]


def _backward(walk: Walk) -> Tensor:
    zeros = walk.gates.new_zeros(walk.batch, walk.hidden)
    dh = zeros if walk.dh_n is None else walk.dh_n
    dc = zeros if walk.dc_n is None else walk.dc_n
    order = list(walk.order)
    for place in range(walk.steps - 1, -1, -1):
        t, before = order[place], order[place - 1] if place else None
        dh = dh if walk.dy is None else dh + walk.dy[t]
        step = _lstm_step if walk.kind == "lstm" else _gru_step
        dh, dc = step(walk, t, before, dh, dc)
    if walk.dh0 is not None:
        walk.dh0.copy_(dh)
    if walk.dc0 is not None:
        walk.dc0.copy_(dc)
    return walk.gates.sum((0, 1)).unsqueeze(0)


def _lstm_step(walk: Walk, t: int, before: int | None, dh: Tensor, dc: Tensor) -> tuple[Tensor, Tensor]:
    of_x, of_h = _bias(walk, 4)
    assert walk.cells is not None
    earlier = walk.c0 if before is None else walk.cells[before]
    earlier = torch.zeros_like(dh) if earlier is None else earlier
    a = (walk.gates[t] + of_x + of_h).chunk(4, 1)
    i, f, g, o, tc = a[0].sigmoid(), a[1].sigmoid(), a[2].tanh(), a[3].sigmoid(), walk.cells[t].tanh()
    dc = dc + dh * o * (1 - tc * tc)
    parts = (dc * g * i * (1 - i), dc * earlier * f * (1 - f), dc * i * (1 - g * g), dh * tc * o * (1 - o))
    walk.gates[t] = torch.cat(parts, 1)
    return walk.gates[t] @ walk.weight, dc * f


def _gru_step(walk: Walk, t: int, before: int | None, dh: Tensor, dc: Tensor) -> tuple[Tensor, Tensor]:
    of_x, of_h = (one.chunk(3) for one in _bias(walk, 3))  # type: ignore[union-attr]
    earlier = walk.h0 if before is None else walk.y[before]
    earlier = torch.zeros_like(dh) if earlier is None else earlier
    a = walk.gates[t].chunk(4, 1)
    r, z, of_state = (a[0] + of_x[0] + of_h[0]).sigmoid(), (a[1] + of_x[1] + of_h[1]).sigmoid(), a[3] + of_h[2]
    n = (a[2] + of_x[2] + r * of_state).tanh()
    dz, dn = dh * (earlier - n) * z * (1 - z), dh * (1 - z) * (1 - n * n)
    dr = dn * of_state * r * (1 - r)
    walk.gates[t] = torch.cat((dr, dz, dn, dn * r), 1)
    return torch.cat((dr, dz, dn * r), 1) @ walk.weight + dh * z, dc

"""LSTM and GRU layers on a CPU, with a hand-written backward pass.

torch's own layers build a graph of some twenty small operations a step and walk it back; on small batches the time goes
into starting them. Here a step forward is six to eight operations into memory made once, a step backward is four or
five, and everything that does not depend on the step before is one large product over all steps. The mathematics is the
same; only the order of additions differs.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

MEASURED_STEPS = 32
MEASURED_ROUNDS = 5

Weights = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # of one layer: input, recurrent, their biases


class _LstmLayer(torch.autograd.Function):
    """One layer over `[step, feature, batch]`; gates in torch's order: input, forget, cell, output.

    Features come before the batch, so that each gate is one contiguous block. `keep` says to save what the backward
    pass needs; it is a parameter because inside a Function torch never reports that gradients are off.
    """

    @staticmethod
    def forward(
        ctx: Any, keep: bool, x: Tensor, h0: Tensor, c0: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        steps, _, batch = x.shape
        hidden = w_h.shape[1]
        gates = projected(x, w_x, bias)
        h = x.new_empty(steps + 1, hidden, batch)
        c = x.new_empty(steps + 1 if keep else 2, hidden, batch)
        tanh_c = x.new_empty(steps if keep else 1, hidden, batch)
        h[0], c[0] = h0, c0
        hs, cs, tanhs = h.unbind(0), c.unbind(0) * (1 if keep else steps), tanh_c.unbind(0) * (1 if keep else steps)
        i, f, g, o = (gate.unbind(0) for gate in torch.split(gates, hidden, dim=1))
        both = gates[:, : 2 * hidden].unbind(0)
        for t, now in enumerate(gates.unbind(0)):
            now.addmm_(w_h, hs[t])
            both[t].sigmoid_()
            g[t].tanh_()
            o[t].sigmoid_()
            torch.mul(f[t], cs[t], out=cs[t + 1]).addcmul_(i[t], g[t])
            torch.tanh(cs[t + 1], out=tanhs[t])
            torch.mul(o[t], tanhs[t], out=hs[t + 1])
        if keep:
            ctx.save_for_backward(x, w_x, w_h, gates, h, c, tanh_c)
            ctx.has_bias = bias is not None
        return h[1:], cs[steps].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h: Tensor, grad_c: Tensor) -> tuple[Tensor | None, ...]:
        x, w_x, w_h, gates, h, c, tanh_c = ctx.saved_tensors
        steps, hidden, batch = tanh_c.shape
        i, f, g, o = gates.view(steps, 4, hidden, batch).unbind(1)
        by_cell = torch.stack((g * i * (1 - i), c[:-1] * f * (1 - f), i * (1 - g * g)), dim=1).unbind(0)
        by_output, to_cell = (tanh_c * o * (1 - o)).unbind(0), (o * (1 - tanh_c * tanh_c)).unbind(0)
        grads = torch.empty_like(gates).view(steps, 4, hidden, batch)
        three, fourth, flat = grads[:, :3].unbind(0), grads[:, 3].unbind(0), grads.flatten(1, 2).unbind(0)
        w, given, forget = transposed(w_h), grad_h.unbind(0), f.unbind(0)
        dh, dc = given[-1].contiguous().clone(), grad_c.clone(memory_format=torch.contiguous_format)
        for t in range(steps - 1, -1, -1):
            dc.addcmul_(dh, to_cell[t])
            torch.mul(dc, by_cell[t], out=three[t])
            torch.mul(dh, by_output[t], out=fourth[t])
            dc.mul_(forget[t])
            torch.mm(w, flat[t], out=dh)
            if t:
                dh.add_(given[t - 1])
        all_grads = grads.flatten(1, 2)
        d_bias = all_grads.sum((0, 2)) if ctx.has_bias else None
        dx = torch.matmul(transposed(w_x), all_grads) if ctx.needs_input_grad[1] else None
        return None, dx, dh, dc, summed_product(all_grads, x), summed_product(all_grads, h[:-1]), d_bias


class _GruLayer(torch.autograd.Function):
    """One layer over `[step, feature, batch]`; gates in torch's order: reset, update, new."""

    @staticmethod
    def forward(
        ctx: Any, keep: bool, x: Tensor, h0: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor | None, b_h: Tensor | None
    ) -> Tensor:
        steps, _, batch = x.shape
        hidden = w_h.shape[1]
        gates = projected(x, w_x, b_x)
        h = x.new_empty(steps + 1, hidden, batch)
        own = x.new_empty(steps if keep else 1, 3 * hidden, batch)
        h[0] = h0
        hs, owns = h.unbind(0), own.unbind(0) * (1 if keep else steps)
        inner = own[:, 2 * hidden :].unbind(0) * (1 if keep else steps)
        first = own[:, : 2 * hidden].unbind(0) * (1 if keep else steps)
        two, new = gates[:, : 2 * hidden].unbind(0), gates[:, 2 * hidden :].unbind(0)
        r, z = gates[:, :hidden].unbind(0), gates[:, hidden : 2 * hidden].unbind(0)
        start = x.new_zeros(1) if b_h is None else b_h.unsqueeze(1)
        for t in range(steps):
            torch.addmm(start, w_h, hs[t], out=owns[t])
            two[t].add_(first[t]).sigmoid_()
            new[t].addcmul_(r[t], inner[t]).tanh_()
            torch.lerp(new[t], hs[t], z[t], out=hs[t + 1])
        if keep:
            ctx.save_for_backward(x, w_x, w_h, gates, h, own[:, 2 * hidden :])
            ctx.has_bias = b_x is not None
        return h[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h: Tensor) -> tuple[Tensor | None, ...]:
        x, w_x, w_h, gates, h, own = ctx.saved_tensors
        steps, hidden, batch = own.shape
        r, z, n = gates.view(steps, 3, hidden, batch).unbind(1)
        to_new = (1 - z) * (1 - n * n)
        # new as the input sees it, then reset, update, and new as the recurrent product sees it
        factors = (to_new, to_new * own * r * (1 - r), (h[:-1] - n) * z * (1 - z), to_new * r)
        slopes = torch.stack(factors, dim=1).unbind(0)
        grads = x.new_empty(steps, 4, hidden, batch)
        four, last_three = grads.unbind(0), grads[:, 1:].flatten(1, 2).unbind(0)
        w, given, updates = transposed(w_h), grad_h.unbind(0), z.unbind(0)
        dh = given[-1].contiguous().clone()
        for t in range(steps - 1, -1, -1):
            torch.mul(dh, slopes[t], out=four[t])
            dh.mul_(updates[t]).addmm_(w, last_three[t])
            if t:
                dh.add_(given[t - 1])
        for_state = grads[:, 1:].flatten(1, 2)
        for_input = torch.cat((grads[:, 1], grads[:, 2], grads[:, 0]), dim=1)
        biases = (for_input.sum((0, 2)), for_state.sum((0, 2))) if ctx.has_bias else (None, None)
        dx = torch.matmul(transposed(w_x), for_input) if ctx.needs_input_grad[1] else None
        return None, dx, dh, summed_product(for_input, x), summed_product(for_state, h[:-1]), *biases


def transposed(weight: Tensor) -> Tensor:
    """Copy the transposed weight: oneDNN was 30 times slower on the transposed view of a small matrix (ARM)."""
    return weight.t().contiguous()


def projected(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the input's contribution to all gates of all steps."""
    out = torch.matmul(weight, x)
    return out if bias is None else out.add_(bias.unsqueeze(1))


def summed_product(grads: Tensor, values: Tensor) -> Tensor:
    """Sum gradient times value over all steps and rows in one product."""
    return grads.transpose(0, 1).flatten(1) @ values.transpose(1, 2).flatten(0, 1)


def suits(layer: nn.RNNBase, x: Any) -> bool:
    """Return whether this module can compute in place of torch's layer."""
    return (
        isinstance(x, Tensor)
        and x.device.type == "cpu"
        and x.dim() == 3
        and x.numel() > 0
        and x.dtype in (torch.float32, torch.float64)
        and layer.weight_hh_l0.dtype == x.dtype
        and not layer.bidirectional
        and not layer.proj_size
        and not torch.is_autocast_enabled("cpu")
    )


def check(layer: nn.RNNBase, x: Tensor, hx: Any) -> None:
    """Raise torch's own errors for shapes that do not fit."""
    layer.check_input(x, None)
    if hx is not None:
        layer.check_forward_args(x, hx, None)


def layer_weights(layer: nn.RNNBase, number: int) -> Weights:
    w_x, w_h = getattr(layer, f"weight_ih_l{number}"), getattr(layer, f"weight_hh_l{number}")
    if not layer.bias:
        return w_x, w_h, None, None
    return w_x, w_h, getattr(layer, f"bias_ih_l{number}"), getattr(layer, f"bias_hh_l{number}")


def by_feature(layer: nn.RNNBase, x: Tensor) -> Tensor:
    """Return the layer's input as `[step, feature, batch]`."""
    return (x.permute(1, 2, 0) if layer.batch_first else x.transpose(1, 2)).contiguous()


def by_row(layer: nn.RNNBase, x: Tensor) -> Tensor:
    """Undo `by_feature`, as a view."""
    return x.permute(2, 0, 1) if layer.batch_first else x.transpose(1, 2)


def first_state(layer: nn.RNNBase, x: Tensor, given: Tensor | None) -> Tensor:
    """Return the initial state as `[layer, feature, batch]`, zero if none is given."""
    return x.new_zeros(layer.num_layers, layer.hidden_size, x.shape[2]) if given is None else given.transpose(1, 2)


def between(layer: nn.RNNBase, outputs: Tensor, number: int) -> Tensor:
    if layer.dropout and number + 1 < layer.num_layers:
        return nn.functional.dropout(outputs, layer.dropout, layer.training)
    return outputs


class HostLSTM(nn.LSTM):
    """torch.nn.LSTM, computed by this module on a CPU where possible."""

    def forward(self, input: Any, hx: Any = None) -> Any:  # noqa: A002 - torch's name
        if not suits(self, input):
            return super().forward(input, hx)
        check(self, input, hx)
        x = by_feature(self, input)
        h0, c0 = (first_state(self, x, given) for given in hx or (None, None))
        lasts = []
        for number in range(self.num_layers):
            w_x, w_h, b_x, b_h = layer_weights(self, number)
            bias = None if b_x is None or b_h is None else b_x + b_h
            x, c = _LstmLayer.apply(torch.is_grad_enabled(), x, h0[number], c0[number], w_x, w_h, bias)  # type: ignore[no-untyped-call]
            lasts.append((x[-1].t(), c.t()))
            x = between(self, x, number)
        h, c = (torch.stack(column) for column in zip(*lasts, strict=True))
        return by_row(self, x), (h, c)


class HostGRU(nn.GRU):
    """torch.nn.GRU, computed by this module on a CPU where possible."""

    def forward(self, input: Any, hx: Any = None) -> Any:  # noqa: A002 - torch's name
        if not suits(self, input):
            return super().forward(input, hx)
        check(self, input, hx)
        x = by_feature(self, input)
        h0 = first_state(self, x, hx)
        lasts = []
        for number in range(self.num_layers):
            x = _GruLayer.apply(torch.is_grad_enabled(), x, h0[number], *layer_weights(self, number))  # type: ignore[no-untyped-call]
            lasts.append(x[-1].t())
            x = between(self, x, number)
        return by_row(self, x), torch.stack(lasts)


OURS: dict[type[nn.Module], type[nn.RNNBase]] = {nn.LSTM: HostLSTM, nn.GRU: HostGRU}
UNTRACED: set[type[nn.RNNBase]] = set()


def become_ours(layer: nn.RNNBase) -> None:
    """Make a layer ours, which torch.compile must not trace. That is declared when first needed: it imports the
    compiler, which takes seconds.
    """
    ours = OURS[type(layer)]
    if ours not in UNTRACED:
        UNTRACED.add(ours)
        ours.forward = torch.compiler.disable(ours.forward)  # type: ignore[no-untyped-call]
    layer.__class__ = ours


def plain_layers(model: nn.Module) -> Iterator[nn.RNNBase]:
    """Yield plain LSTM and GRU layers; a subclass has a forward of its own and is skipped."""
    return (module for module in model.modules() if type(module) in OURS and isinstance(module, nn.RNNBase))


def use_faster_layers(model: nn.Module, batch_size: int, steps: int) -> list[str]:
    """Replace the layers that the engine runs faster, measured on a few steps of batches of this size; return a line
    for each.
    """
    lines = []
    for layer in list(plain_layers(model)):
        by_torch, ours = seconds_of_both(layer, batch_size, min(steps, MEASURED_STEPS))
        name = type(layer).__name__
        if ours < by_torch:
            become_ours(layer)
        which = "the engine's" if ours < by_torch else "torch's"
        lines.append(f"{name} on the CPU: {which} ({1000 * by_torch:.3g} ms by torch, {1000 * ours:.3g} by the engine)")
    return lines


def seconds_of_both(layer: nn.RNNBase, batch_size: int, steps: int) -> tuple[float, float]:
    """Time forward and backward of two copies by turns and return the best of each. No random numbers are drawn."""
    reference = copy.deepcopy(layer)
    reference.dropout = 0.0
    ours = copy.deepcopy(reference)
    become_ours(ours)
    shape = (batch_size, steps) if layer.batch_first else (steps, batch_size)
    x = torch.full((*shape, layer.input_size), 0.1, dtype=next(layer.parameters()).dtype)
    best = [float("inf")] * 2
    for _ in range(MEASURED_ROUNDS):
        for number, twin in enumerate((reference, ours)):
            started = time.perf_counter()
            twin(x)[0].sum().backward()
            best[number] = min(best[number], time.perf_counter() - started)
    return best[0], best[1]

"""Compares a layer of ours with torch.nn's in float64: outputs, final states and all gradients."""

from __future__ import annotations

import copy

import torch

from hotlap.engine import nn as ours
from hotlap.kernels.recurrent import selection

BY = "cuda:fma:r2:c1:b1"
HIDDEN, FEW = 5, 2  # one size for all tests that need no other: each is compiled once
KINDS = {"lstm": (ours.LSTM, torch.nn.LSTM), "gru": (ours.GRU, torch.nn.GRU)}


def pair(kind, *sizes, **options):
    """Our layer and torch.nn's with the same weights, the latter in float64."""
    mine, theirs = KINDS[kind]
    layer = mine(*sizes, **options)
    reference = theirs(*sizes, **options)
    reference.load_state_dict(layer.state_dict(), strict=True)
    return layer, reference.double()


def states(kind, layer, batch):
    """The initial states of an LSTM, or the one state of a GRU."""
    shape = (layer.num_layers * (2 if layer.bidirectional else 1), *batch, layer.hidden_size)
    made = tuple(torch.randn(shape) for _ in range(2 if kind == "lstm" else 1))
    return made if kind == "lstm" else made[0]


def leaves(x, hx):
    return [x, *(() if hx is None else hx if isinstance(hx, tuple) else (hx,))]


def outcome(layer, x, hx):
    """All outputs, and the gradients of inputs, states and weights under a fixed weighting of the outputs."""
    x = x.detach().clone().requires_grad_()
    hx = None if hx is None else tuple(state.detach().clone().requires_grad_() for state in leaves(x, hx)[1:])
    y, last = layer(x, hx if hx is None or len(hx) == 2 else hx[0])
    outputs = leaves(y, last)
    weights = [torch.linspace(-1, 1, output.numel()).view(output.shape).to(output) for output in outputs]
    inputs = [*leaves(x, hx), *layer.parameters()]
    return [output.detach() for output in outputs], torch.autograd.grad(outputs, inputs, weights)


def by_masks(kind, reference, x, seed):
    """Outputs and gradients of the weights, layer by layer: dropout draws its masks as torch.nn's own function does."""
    layers = []
    for number in range(reference.num_layers):
        layer = KINDS[kind][1](x.shape[2] if number == 0 else reference.hidden_size, reference.hidden_size)
        mine = {name: weight for name, weight in reference.state_dict().items() if name.endswith(f"_l{number}")}
        layer.load_state_dict({name.replace(f"_l{number}", "_l0"): weight for name, weight in mine.items()})
        layers.append(layer.to(x.device, torch.float64))
    torch.manual_seed(seed)
    y = layers[0](x.double())[0]
    for layer in layers[1:]:
        mask = torch.native_dropout(y.float(), reference.dropout, True)[1]
        y = layer(y * mask * (0.0 if reference.dropout == 1 else 1 / (1 - reference.dropout)))[0]
    weights = [weight for layer in layers for weight in layer.parameters()]
    return [y.detach(), *torch.autograd.grad(y.square().sum(), weights)]


def doubled(hx):
    return hx if hx is None else tuple(state.double() for state in hx) if isinstance(hx, tuple) else hx.double()


def assert_alike(kind, variant, layer, reference, x, hx, tolerance):
    with selection.forced(variant):
        found = outcome(layer, x, hx)
    expected = outcome(copy.deepcopy(reference).to(x.device), x.double(), doubled(hx))
    for name, mine, theirs in zip(("outputs", "gradients"), found, expected, strict=True):
        for index, (tensor, exact) in enumerate(zip(mine, theirs, strict=True)):
            assert tensor.shape == exact.shape
            worst = float((tensor.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-3))
            assert worst <= tolerance, f"{kind} by {variant}: {name} {index} is off by {worst:.1e}"


def one_case(kind, variant, hidden, batch, tolerance, given=True, steps=4, **options):
    torch.manual_seed(hidden)
    layer, reference = pair(kind, 3, hidden, **options)
    x = torch.randn(steps, batch, 3)
    assert_alike(kind, variant, layer, reference, x, states(kind, layer, (batch,)) if given else None, tolerance)

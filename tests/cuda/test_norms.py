"""Batch normalisation by our kernels on a GPU is no further from float64 than torch's, captured or not."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

from hotlap.engine.nn import BatchNorm2d, fuse_norms
from hotlap.kernels.norms import launches, layer
from hotlap.kernels.norms.operation import OF_ACTIVATION

pytestmark = pytest.mark.cuda
DEVICE = torch.device("cuda", 0)
SHAPES = [(16, 32, 61, 67), (2, 8, 3, 5), (8, 264, 20, 20), (4, 1024, 13, 7), (32, 48, 56, 56)]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def given(shape, dtype):
    torch.manual_seed(0)
    x, g = torch.randn(shape, device=DEVICE), torch.randn(shape, device=DEVICE)
    x = x * 2 + 3 * torch.randn(1, shape[1], 1, 1, device=DEVICE)
    return [tensor.to(dtype).to(memory_format=torch.channels_last) for tensor in (x, g)]


def layers(x, activation):
    """torch's layer in float64, torch's layer and our layer, all with the same weights."""
    torch.manual_seed(1)
    channels = x.shape[1]
    theirs = nn.BatchNorm2d(channels, device=DEVICE)
    nn.init.uniform_(theirs.weight, 0.5, 2.0)
    nn.init.normal_(theirs.bias)
    ours = BatchNorm2d.of(copy.deepcopy(theirs), activation)
    plan = launches.planned(launches.Shape(x.numel() // channels, channels, x.dtype, activation, 0))
    act = OF_ACTIVATION[activation]
    wide = copy.deepcopy(theirs).double()
    return (
        (wide, lambda x: act(wide(x))),
        (theirs, lambda x: act(theirs(x))),
        (ours, partial(layer.by_kernels, plan, ours)),
    )


def passed(module, forward, x, g):
    x = x.detach().clone().requires_grad_()
    y = forward(x)
    y.backward(g)
    return [y.detach(), x.grad, module.weight.grad, module.bias.grad, module.running_mean, module.running_var]


@pytest.mark.parametrize("activation", ["none", "relu", "silu"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_is_as_close_to_float64_as_torch(shape, dtype, activation):
    x, g = given(shape, dtype)
    exact, theirs, ours = layers(x, activation)
    is_slower = activation == "none" and dtype is not torch.bfloat16
    assert (layer.plan_for(ours[0], x, activation) is None) == is_slower
    wanted = passed(*exact, x.double(), g.double())
    by_torch, by_us = passed(*theirs, x, g), passed(*ours, x, g)
    assert ours[0].num_batches_tracked == 1
    for number, (right, from_torch, from_kernels) in enumerate(zip(wanted, by_torch, by_us, strict=True)):
        assert from_kernels.stride() == right.stride()
        largest = right.abs().max()
        errors = [((tensor.double() - right).abs().max() / largest).item() for tensor in (from_torch, from_kernels)]
        assert errors[1] <= max(1.5 * errors[0], 4e-6), (number, errors)


def test_every_run_gives_the_same_bits_captured_or_not():
    found = []
    for captured in (False, False, True):
        x, g = given(SHAPES[0], torch.bfloat16)
        x.requires_grad_()  # a new tensor each time: torch runs its backward on the stream of its first use
        made = BatchNorm2d(SHAPES[0][1], activation="silu", device=DEVICE)
        inputs = (x, made.weight, made.bias)
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = made(x)
                results = (y, *torch.autograd.grad(y, inputs, g))
            assert made.num_batches_tracked == 0
            graph.replay()
        else:
            y = made(x)
            results = (y, *torch.autograd.grad(y, inputs, g))
        assert made.num_batches_tracked == 1
        found.append([tensor.detach() for tensor in (*results, made.running_mean, made.running_var)])
    for others in found[1:]:
        assert all(torch.equal(tensor, repeated) for tensor, repeated in zip(found[0], others, strict=True))


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(inputs, outputs, 3), nn.BatchNorm2d(outputs), nn.SiLU()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


def test_a_fused_model_trains_alike_under_autocast():
    losses = []
    for fused in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(Block(3, 16), Block(16, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1))
        model.to(DEVICE, memory_format=torch.channels_last)
        assert not fused or fuse_norms(model) == 2
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x = torch.randn(64, 3, 24, 24, device=DEVICE).to(memory_format=torch.channels_last)
        target = x.mean((1, 2, 3), keepdim=False)[:, None] * 20
        for _ in range(60):
            with torch.autocast("cuda", torch.bfloat16):
                loss = (model(x) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_another_device_type_layout_or_mode_is_left_to_torch():
    made = BatchNorm2d(16, activation="relu", device=DEVICE)
    x, _ = given((4, 16, 8, 8), torch.float32)
    assert layer.plan_for(made, x, "relu") is not None
    assert layer.plan_for(made, x.contiguous(), "relu") is None
    assert layer.plan_for(made, x.cpu(), "relu") is None
    assert layer.plan_for(made.eval(), x, "relu") is None
    made.train()
    with torch.inference_mode():
        assert layer.plan_for(made, x, "relu") is None
        assert torch.equal(made(x), torch.relu(nn.BatchNorm2d(16, device=DEVICE)(x)))
    compiled = torch.compile(made, backend="eager")
    assert torch.allclose(compiled(x), torch.relu(nn.BatchNorm2d(16, device=DEVICE)(x)), atol=1e-6)

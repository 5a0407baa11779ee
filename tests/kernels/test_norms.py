"""Batch normalisation matches torch's in float64; the kernels' own source runs on the CPU, thread by thread."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

from hotlap.engine.nn import BatchNorm2d, fuse_norms
from hotlap.engine.snapshot import HostTraces
from hotlap.kernels.norms import launches, layer
from hotlap.kernels.norms.launches import Shape
from hotlap.kernels.norms.operation import OF_ACTIVATION, Statistics, normalised
from tests.engine.tape import EmulatedRecorder
from tests.engine.training import Rows, fitted
from tests.kernels import emulating_norms

ERRORS = {torch.float32: 2e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # of one rounding, and of sums


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    emulating_norms.on_cpu(monkeypatch)


def made(shape, dtype, mean=0.5, seed=0):
    torch.manual_seed(seed)
    x = torch.randn(shape).mul_(1.5).add_(mean * torch.randn(1, shape[1], 1, 1))
    return x.to(dtype).to(memory_format=torch.channels_last)


def statistics_of(channels, momentum=0.1):
    return Statistics(torch.randn(channels), torch.rand(channels) + 0.5, torch.tensor(3), momentum)


def ours(x, weight, bias, statistics, activation, eps=1e-3):
    plan = launches.Plan(Shape(x.numel() // x.shape[1], x.shape[1], x.dtype, activation, 0))
    return normalised(plan, x, weight, bias, statistics, eps)


def reference(x, weight, bias, statistics, activation, eps=1e-3):
    """Compute the same in float64, including the running statistics."""
    wide = [None if tensor is None else tensor.detach().double().requires_grad_() for tensor in (x, weight, bias)]
    running = [
        None if statistic is None else statistic.double().clone()
        for statistic in (statistics.mean, statistics.variance)
    ]
    y = functional.batch_norm(wide[0], *running, *wide[1:], True, statistics.momentum, eps)
    return OF_ACTIVATION[activation](y), wide, running


def near(found, wanted, error):
    apart = (found.double() - wanted).abs().max()
    assert apart <= error * wanted.abs().max().clamp(min=1e-6), (apart, wanted.abs().max())


CASES = [
    ((2, 8, 5, 7), torch.bfloat16, "silu"),
    ((3, 32, 9, 11), torch.bfloat16, "none"),
    ((1, 8, 1, 3), torch.float16, "relu"),
    ((4, 48, 6, 5), torch.float16, "silu"),
    ((2, 12, 7, 5), torch.float32, "silu"),
    ((2, 264, 5, 3), torch.bfloat16, "relu"),
    ((2, 512, 3, 3), torch.bfloat16, "silu"),
    ((40, 8, 24, 24), torch.float32, "none"),
]


@pytest.mark.parametrize(("shape", "dtype", "activation"), CASES)
def test_outputs_gradients_and_statistics_match_torch(shape, dtype, activation):
    x, channels, error = made(shape, dtype).requires_grad_(), shape[1], ERRORS[dtype]
    weight, bias = nn.Parameter(torch.rand(channels) + 0.5), nn.Parameter(torch.randn(channels))
    statistics = statistics_of(channels)
    wanted, wide, running = reference(x, weight, bias, statistics, activation)
    y = ours(x, weight, bias, statistics, activation)
    assert y.dtype is dtype
    assert y.stride() == x.stride()
    near(y, wanted, error)
    near(statistics.mean, running[0], 1e-6)
    near(statistics.variance, running[1], 2e-6)
    assert statistics.tracked == 4
    g = made(shape, dtype, seed=1)
    y.backward(g)
    wanted.backward(g.double())
    assert x.grad.stride() == x.stride()
    near(x.grad, wide[0].grad, 2 * error)
    near(weight.grad, wide[1].grad, 1e-5)
    near(bias.grad, wide[2].grad, 1e-5)


def test_a_mean_far_from_zero_loses_no_precision():
    x = (torch.randn(4, 8, 13, 17) * 0.01 + 100).to(memory_format=torch.channels_last)
    x[0, :, 0, 0] = 60  # a corner unlike all else, and the first value of all
    statistics = statistics_of(8)
    wanted, _, running = reference(x, None, None, statistics, "none")
    near(ours(x, None, None, statistics, "none"), wanted, 1e-4)
    near(statistics.variance, running[1], 1e-5)


def test_works_without_running_statistics():
    x = made((2, 8, 4, 4), torch.float32)
    wanted, *_ = reference(x, None, None, Statistics(None, None, None, 0.0), "relu")
    near(ours(x, None, None, Statistics(None, None, None, 0.0), "relu"), wanted, 2e-6)


@pytest.mark.parametrize("needs", [(True, False), (False, True)])
def test_only_the_requested_gradients_are_computed(needs):
    x, weight = made((2, 8, 4, 4), torch.float32).requires_grad_(needs[0]), torch.ones(8, requires_grad=needs[1])
    wanted, wide, _ = reference(x, weight, None, statistics_of(8), "silu")
    ours(x, weight, None, statistics_of(8), "silu").square().sum().backward()
    wanted.square().sum().backward()
    for tensor, exact, is_needed in zip((x, weight), wide[:2], needs, strict=True):
        if is_needed:
            near(tensor.grad, exact.grad, 1e-5)
        else:
            assert tensor.grad is None


def test_accepts_gradients_in_any_layout():
    x = made((2, 16, 4, 5), torch.bfloat16).requires_grad_()
    y = ours(x, None, None, statistics_of(16), "relu")
    (first,) = torch.autograd.grad(y, x, torch.ones(1, dtype=x.dtype).expand(2, 16, 4, 5), retain_graph=True)
    (second,) = torch.autograd.grad(y, x, torch.ones(2, 16, 4, 5, dtype=x.dtype))
    assert torch.equal(first, second)


def test_saved_tensor_hooks_may_change_the_layout_of_inputs():
    """torch.autograd.graph.save_on_cpu(pin_memory=True) does so."""
    x, weight = made((2, 16, 4, 5), torch.float32).requires_grad_(), torch.ones(16, requires_grad=True)
    found = []
    for unpack in (lambda tensor: tensor, lambda tensor: tensor.clone(memory_format=torch.contiguous_format)):
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
            y = ours(x, weight, None, statistics_of(16), "silu")
        found.append(torch.autograd.grad(y.square().sum(), (x, weight)))
    assert all(torch.equal(gradient, expected) for gradient, expected in zip(*found, strict=True))


def test_gradients_need_not_be_aligned():
    x = made((2, 8, 4, 4), torch.float32).requires_grad_()
    y = ours(x, None, None, statistics_of(8), "relu")
    g = torch.randn(y.numel() + 1)[1:].view(2, 4, 4, 8).permute(0, 3, 1, 2)
    assert g.data_ptr() % 16
    assert g.is_contiguous(memory_format=torch.channels_last)
    (first,) = torch.autograd.grad(y, x, g, retain_graph=True)
    (second,) = torch.autograd.grad(y, x, g.clone())
    assert torch.equal(first, second)


def test_a_bias_may_change_before_the_backward():
    x, bias = made((2, 8, 4, 4), torch.float32), torch.zeros(8, requires_grad=True)
    y = ours(x, None, bias, statistics_of(8), "none")
    with torch.no_grad():
        bias += 1
    y.sum().backward()
    assert torch.equal(bias.grad, torch.full((8,), 32.0))


def test_second_derivatives_match_torch():
    x, weight = made((2, 8, 4, 4), torch.float32).requires_grad_(), torch.ones(8, requires_grad=True)
    wanted, wide, _ = reference(x, weight, None, statistics_of(8), "silu")
    y = ours(x, weight, None, statistics_of(8), "silu")
    for loss, inputs in ((y, (x, weight)), (wanted, wide[:2])):
        (slope,) = torch.autograd.grad(loss.square().sum(), inputs[0], create_graph=True)
        slope.square().sum().backward()
    near(x.grad, wide[0].grad, 1e-4)
    near(weight.grad, wide[1].grad, 1e-4)


def test_repeated_runs_give_the_same_bits():
    x, g = made((3, 24, 15, 9), torch.bfloat16).requires_grad_(), made((3, 24, 15, 9), torch.bfloat16, seed=1)
    both = []
    for _ in range(2):
        y = ours(x, None, None, Statistics(None, None, None, 0.0), "silu")
        both.append((y, *torch.autograd.grad(y, x, g)))
    assert all(torch.equal(tensor, again) for tensor, again in zip(*both, strict=True))


def test_nan_stays_nan():
    x = made((2, 8, 4, 4), torch.float32)
    x[0, 3, 1, 1] = torch.nan
    for activation in launches.ACTIVATIONS:
        y = ours(x, None, None, statistics_of(8), activation)
        assert y[:, 3].isnan().all()
        assert not y[:, 4].isnan().any()


# ---------------------------------------------------------------- the layer


class Block(nn.Module):
    def __init__(self, activation=None):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.act = activation or nn.SiLU()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class Residual(Block):
    def forward(self, x):
        made = self.norm(self.conv(x))
        return made + self.act(made)


class Twice(Block):
    def forward(self, x):
        return self.act(self.norm(self.conv(x))) + self.act(self.conv(x))


def test_on_a_cpu_the_layer_is_torchs():
    torch.manual_seed(0)
    theirs, x = nn.Sequential(nn.BatchNorm2d(8), nn.SiLU()), made((2, 8, 4, 4), torch.float32)
    mine = BatchNorm2d(8, activation="silu")
    for _ in range(2):
        assert torch.equal(mine(x), theirs(x))
    assert mine.state_dict().keys() == theirs[0].state_dict().keys()
    mine.load_state_dict(theirs[0].state_dict())
    assert torch.equal(mine.eval()(x), theirs.eval()(x))
    with pytest.raises(ValueError, match="use one of none, relu, silu"):
        BatchNorm2d(8, activation="gelu")


@pytest.mark.parametrize(
    ("model", "fused"),
    [
        (Block(), 1),
        (Block(nn.ReLU()), 1),
        (Block(nn.GELU()), 0),
        (Residual(), 0),
        (Twice(), 0),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), Block().conv), 1),
    ],
    ids=["silu", "relu", "gelu", "residual", "twice", "sequential"],
)
def test_fused_pairs_compute_the_same(model, fused):
    if isinstance(model, nn.Sequential):
        model = model[:3]
    plain, x = copy.deepcopy(model), torch.randn(2, 3, 6, 6)
    names = list(model.state_dict())
    assert fuse_norms(model) == fused
    assert list(model.state_dict()) == names
    assert sum(isinstance(module, BatchNorm2d) for module in model.modules()) == fused
    assert torch.equal(model(x), plain(x))
    model.load_state_dict(plain.state_dict())
    assert fuse_norms(model) == 0
    assert torch.equal(copy.deepcopy(model).eval()(x), plain.eval()(x))


class Tapped(nn.Module):
    """A model that also runs each layer of its nn.Sequential and of its block by itself."""

    def __init__(self):
        super().__init__()
        self.layers, self.block = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()), Block()

    def forward(self, x):
        found = []
        for module in self.layers:
            x = module(x)
            found.append(x)
        return [*found, self.layers(x), self.block(x), self.block.norm(self.block.conv(x)), self.block.act(x)]


def test_running_fused_layers_one_by_one_gives_each_layers_output():
    model = Tapped()
    plain, x = copy.deepcopy(model), torch.randn(2, 3, 6, 6)
    assert fuse_norms(model) == 2
    for _ in range(2):
        assert all(torch.equal(output, expected) for output, expected in zip(model(x), plain(x), strict=True))
    assert model(x)[0].min() < 0
    again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert all(torch.equal(output, expected) for output, expected in zip(again(x), model(x), strict=True))


def test_a_forward_leaves_no_trace_that_would_prevent_capture():
    model = Tapped()
    fuse_norms(model)
    traces = HostTraces(model, torch.device("cpu"))
    model(torch.randn(2, 3, 6, 6))
    assert "changes the attribute" not in (traces.why_not() or "")


class OfImages(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.head = Block(), nn.Linear(8, 1)
        fuse_norms(self)

    def forward(self, x):
        return self.head(self.block(x.view(-1, 3, 4, 4)).mean((2, 3)))


def test_a_step_of_a_fused_model_is_captured(monkeypatch):
    x = torch.randn(40, 48, generator=torch.Generator().manual_seed(0))
    rows = Rows(x, x.sum(1, keepdim=True))
    recorder = EmulatedRecorder()
    made, history = fitted(
        2, train=rows, valid=rows, recorder=recorder, monkeypatch=monkeypatch, model=OfImages, graph="on"
    )
    assert history.mode == "one CUDA graph"
    plain, _ = fitted(2, train=rows, valid=rows, model=OfImages, graph="off")
    for parameter, expected in zip(made.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-5)


def test_a_failed_forward_leaves_no_layer_switched():
    model = Block()
    fuse_norms(model)
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 4, 6, 6))
    x = torch.randn(2, 8, 6, 6)
    assert torch.equal(model.norm(x), nn.BatchNorm2d(8)(x))
    assert torch.equal(model.act(x), nn.functional.silu(x))


@pytest.mark.parametrize("change", ["act", "norm", "del"])
def test_a_layer_replaced_after_fusing_does_only_its_own_part(change):
    model = Block().eval()
    plain, x = copy.deepcopy(model), torch.randn(2, 3, 6, 6)
    fuse_norms(model)
    for block in (model, plain):
        if change == "act":
            block.act = nn.GELU()
        else:
            block.norm = nn.Identity()
    assert torch.equal(model(x), plain(x))


class Overridden(Block):
    def forward(self, x):
        return getattr(self, "norm")(self.conv(x))  # noqa: B009


def test_fusing_looks_at_the_forward_that_actually_runs():
    model, plain = Overridden(), Block()
    assert fuse_norms(model) == 0
    plain.forward = lambda x: plain.norm(plain.conv(x))
    assert fuse_norms(plain) == 0


def test_a_fused_model_can_be_compiled():
    model = Block()
    plain, x = copy.deepcopy(model), torch.randn(2, 3, 6, 6)
    fuse_norms(model)
    assert torch.allclose(torch.compile(model, backend="eager", fullgraph=True)(x), plain(x), atol=1e-6)


def test_fusing_keeps_the_parameter_tensors():
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.norm.weight
    fuse_norms(model)
    assert model.norm.weight is before
    model(torch.randn(2, 3, 6, 6)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.norm.weight, torch.ones(8))


def test_a_watched_or_shared_layer_is_left_alone():
    watched = Block()
    watched.norm.register_forward_hook(lambda *_: None)
    shared = nn.SiLU()
    assert fuse_norms(watched) == fuse_norms(nn.Sequential(Block(shared), Block(shared))) == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"x": torch.randn(2, 8, 4, 4)}, "channels-last"),
        ({"x": made((2, 12, 4, 4), torch.bfloat16)}, "16 bytes"),
        ({"x": made((1, 8, 1, 1), torch.float32)}, "single row"),
        ({"momentum": None}, "means over all batches"),
        ({"dtype": torch.float64}, "float32 beside"),
        ({"tracked": torch.tensor(1.0)}, "float32 beside"),
        ({"weight": nn.Parameter(torch.ones(16)[::2])}, "float32 beside"),
        ({"weight": nn.Parameter(torch.ones(4))}, "float32 beside"),
        ({"activation": "none"}, "as fast for torch.float32"),
        ({"activation": "none", "x": made((2, 8, 4, 4), torch.bfloat16)}, None),
        ({}, None),
    ],
)
def test_unsupported_inputs_are_left_to_torch(change, why):
    x = change.get("x", made((2, 8, 4, 4), torch.float32))
    norm = nn.BatchNorm2d(x.shape[1], momentum=change.get("momentum", 0.1)).to(change.get("dtype", torch.float32))
    norm.weight, norm.num_batches_tracked = change.get("weight", norm.weight), change.get("tracked", torch.tensor(0))
    found = layer.why_not(norm, x, change.get("activation", "silu"))
    assert (found is None) if why is None else why in found

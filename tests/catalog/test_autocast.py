"""autocast returns float32 outputs, and in fp16 scales gradients without the program noticing."""

import math

import pytest
import torch
from catalog.compute_models import ROWS, SERIES, Recurrent, adam, mlp, train
from observations import device, kernel, model, observation, settings
from torch import nn

import hotlap
from hotlap.catalog import entries
from hotlap.catalog.autocast import hardware
from hotlap.catalog.autocast import hidden_scaler as scaling_module
from hotlap.catalog.autocast.hidden_scaler import HiddenScaler


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()


@pytest.fixture
def capable(answering):
    """Half precision may be emulated here, because these tensors are tiny."""
    answering(hardware, supports=True)


def enabled(precision="fp16"):
    return hotlap.enable(None, with_=[f"autocast={precision}"])


def fused(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def test_refuses_a_processor_that_would_emulate_bfloat16(answering):
    answering(hardware, _processor_supports=False)
    plain = train(mlp, ROWS, steps=4)[0]
    with enabled("bf16") as running:
        assert train(mlp, ROWS, steps=4)[0] == plain
        assert running.outcomes[0].status == "refused"
        assert "no native bf16" in running.outcomes[0].why


@pytest.mark.parametrize(
    ("machine", "precision", "can", "expected"),
    [
        ("x86_64", "bf16", {"amx_bf16": True}, True),
        ("x86_64", "bf16", {"avx512_f": True}, False),
        ("x86_64", "fp16", {"avx512_bf16": True}, False),
        ("aarch64", "fp16", {"fp16_arith": True}, False),
    ],
)
def test_recognises_processors_with_native_support(monkeypatch, answering, machine, precision, can, expected):
    answering(hardware.platform, machine=machine)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: can, raising=False)
    assert hardware.supports(torch, torch.device("cpu"), precision) is expected


def test_queries_older_torch_one_feature_at_a_time(monkeypatch, answering):
    answering(hardware.platform, machine="x86_64")
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    assert hardware.supports(torch, torch.device("cpu"), "bf16")
    monkeypatch.setattr(torch.cpu, "_is_amx_fp16_supported", lambda: False, raising=False)
    assert not hardware.supports(torch, torch.device("cpu"), "fp16")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("optimizer", [adam, fused])
@pytest.mark.usefixtures("capable")
def test_trains_close_to_full_precision(precision, optimizer):
    losses, _, _, rng = train(mlp, ROWS, optimizer=optimizer)
    dtypes = []

    def look(step, model, opt):
        dtypes.append({parameter.grad.dtype for parameter in model.parameters()})

    with enabled(precision) as running:
        ours, _, opt, rng_again = train(mlp, ROWS, optimizer=optimizer, between=look)
        assert running.outcomes[0].status == "applied"
    assert ours == pytest.approx(losses, rel=0.05)
    assert ours[3:] != losses[3:]
    assert torch.equal(rng, rng_again)
    assert dtypes == [{torch.float32}] * 8
    assert not hasattr(opt, "found_inf")


@pytest.mark.usefixtures("capable")
def test_outputs_are_float32_while_inner_activations_are_not():
    inner = []

    class Looking(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            inner.append(out.dtype)
            return {"out": (out, 3)}

    with enabled("bf16"):
        module = Looking(16, 4)
        opt = adam(module)
        for _ in range(4):
            outcome = module(torch.randn(ROWS))
            assert outcome["out"][0].dtype is torch.float32
            outcome["out"][0].sum().backward()
            opt.step()
    assert inner == [torch.float32, torch.float32, torch.bfloat16, torch.bfloat16]


def gradients(accumulate, clip):
    """Returns what the program sees before each of several steps."""
    seen = []
    torch.manual_seed(0)
    module = mlp()
    opt = torch.optim.SGD(module.parameters(), lr=0.0)  # the same weights, so gradients can be compared
    for _ in range(4):
        opt.zero_grad()
        for _ in range(accumulate):
            x = torch.randn(ROWS, requires_grad=True)
            nn.functional.cross_entropy(module(x), torch.arange(8) % 4).backward()
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 0.01) if clip else torch.zeros(())
        seen.append([norm, x.grad, *(parameter.grad.clone() for parameter in module.parameters())])
        opt.step()
    return seen


@pytest.mark.parametrize(("accumulate", "clip"), [(1, False), (3, False), (2, True)])
@pytest.mark.usefixtures("capable")
def test_the_program_sees_unscaled_gradients(accumulate, clip):
    plain = gradients(accumulate, clip)
    with enabled("fp16") as running:
        ours = gradients(accumulate, clip)
        assert running.outcomes[0].status == "applied"
    for step_ours, step_plain in zip(ours, plain, strict=True):
        for gradient, expected in zip(step_ours, step_plain, strict=True):
            torch.testing.assert_close(gradient, expected, rtol=0.05, atol=2e-4)


class Overflowing(nn.Module):
    """The model's gradients overflow on request."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("factor", torch.ones(()), persistent=False)

    def forward(self, x):
        return self.layer(x) * self.factor


def overflowing(optimizer, closure):
    torch.manual_seed(0)
    module = Overflowing()
    opt = optimizer(module)
    weights = []
    for step in range(6):
        module.factor.fill_(math.inf if step == 4 else 1.0)

        def backward():
            opt.zero_grad()
            loss = module(torch.ones(2, 4)).mean() / 8  # otherwise the first scale overflows too
            loss.backward()
            return loss

        if closure:
            opt.step(backward)
        else:
            backward()
            opt.step()
        weights.append(module.layer.weight.detach().clone())
    return weights, opt.state[module.layer.weight]


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("optimizer", [adam, fused])
@pytest.mark.usefixtures("capable")
def test_skips_a_step_that_overflowed(optimizer, closure):
    with enabled("fp16"):
        weights, state = overflowing(optimizer, closure)
    assert torch.equal(weights[4], weights[3])
    assert not torch.equal(weights[5], weights[4])
    assert weights[5].isfinite().all()
    assert state["step"] == 5


def test_the_scale_falls_and_grows(constants):
    constants(scaling_module, INTERVAL=5)
    parameter = nn.Parameter(torch.ones(2))
    opt = torch.optim.SGD([parameter], lr=0.1)
    scaling = HiddenScaler(torch, torch.device("cpu"), [opt])

    def step(factor):
        loss = (parameter * factor).sum()
        scaling.backward(torch.autograd.backward, loss, (loss,), {})
        scaling.before_step(opt)
        opt.step()
        scaling.after_step(opt)
        parameter.grad = None
        return scaling._scale.item()

    assert step(1.0) == 65536
    assert step(math.inf) == 32768
    for _ in range(4):
        assert step(0.0) == 32768
    assert step(0.0) == 65536


@pytest.mark.usefixtures("capable")
def test_scaling_survives_autograd_grad_and_failing_backwards():
    with enabled("fp16"):
        torch.manual_seed(0)
        module = mlp()
        opt = adam(module)
        for _ in range(4):
            opt.zero_grad()
            loss = module(torch.randn(ROWS)).sum()
            loss.backward()
            opt.step()
        loss = module(torch.ones(ROWS)).sum()
        [wanted] = torch.autograd.grad(loss, module[4].bias, retain_graph=True)
        assert wanted == pytest.approx([8.0] * 4)
        loss.backward()
        before = module[4].bias.grad.clone()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        with pytest.raises(RuntimeError, match="only for scalar outputs"):
            module(torch.ones(ROWS)).backward()
        assert torch.equal(module[4].bias.grad, before)


def with_own_autocast(step, module, opt):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        module(torch.randn(ROWS))


def with_own_scaler(step, module, opt):
    torch.amp.GradScaler("cpu").scale(torch.ones(()))


def test_programs_that_use_autocast_themselves_are_left_alone(capable):
    for own, why in [(with_own_autocast, "uses autocast itself"), (with_own_scaler, "scales its loss itself")]:
        with enabled("bf16") as running:
            train(mlp, ROWS, steps=5, between=own)
            assert running.outcomes[0].status == "no effect"
            assert why in running.outcomes[0].why


def test_a_scaler_created_later_withdraws_it(capable):
    late = lambda step, *rest: with_own_scaler(step, *rest) if step == 5 else None  # noqa: E731
    with enabled("fp16") as running:
        train(mlp, ROWS, between=late)
        assert running.outcomes[0].status == "withdrawn"


def test_refuses_recurrent_layers_hooks_and_double_precision(capable):
    def hooked():
        module = mlp()
        module[0].weight.register_hook(lambda gradient: None)
        return module

    for make, shape, precision, why in [
        (Recurrent, SERIES, "bf16", "7 to 13 times slower"),
        (hooked, ROWS, "fp16", "hooks"),
        (Mixed, ROWS, "bf16", "not float32"),
    ]:
        with enabled(precision) as running:
            train(make, shape, steps=4)
            assert running.outcomes[0].status == "refused"
            assert why in running.outcomes[0].why


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4, dtype=torch.float64)

    def forward(self, x):
        return self.layer(x.double()).float()


def test_closing_restores_everything(capable):
    touched = [torch.autocast, torch.autograd, torch.optim.Optimizer, nn.Module, nn.Sequential, torch.amp.GradScaler]
    before = [dict(vars(owner)) for owner in touched]
    with enabled("fp16"):
        train(mlp, ROWS, steps=4)
    assert [dict(vars(owner)) for owner in touched] == before


def test_estimates_its_gain():
    detect = entries()["autocast"].detect
    busy = device(9.0, kernels=(kernel("matmul", 0.5), kernel("other", 0.5)))
    on_gpu = {"models": (model(device="cuda:0"),), "device": busy, "settings": settings()}
    assert detect(observation(**on_gpu)).most == pytest.approx(0.45)
    assert detect(observation()) is None
    assert detect(observation(**on_gpu | {"settings": settings(autocast="bfloat16")})) is None
    assert detect(observation(**on_gpu | {"models": (model(device="cuda:0", layers={"LSTM": 1}),)})) is None

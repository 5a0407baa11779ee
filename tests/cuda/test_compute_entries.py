"""Compute entries on a GPU switch what they promise, change results only within their risk class, and never wait."""

import copy

import pytest
import torch
from catalog.compute_models import IMAGES, ROWS, SERIES, Blocks, ConvNet, Recurrent, mlp, train
from torch import nn

import hotlap

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()


def on_gpu(make, shape, **more):
    return train(make, shape, device="cuda", **more)


def fused(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def plain_and_with(make, shape, *entries, **more):
    plain = on_gpu(make, shape, **more)
    with hotlap.enable(None, with_=entries) as under:
        ours = on_gpu(make, shape, **more)
        outcomes = under.outcomes
    return plain, ours, outcomes


def test_tf32_stays_close_and_is_restored():
    plain, ours, [outcome] = plain_and_with(mlp, ROWS, "tf32")
    assert outcome.status == "applied", outcome.why
    assert ours[0] == pytest.approx(plain[0], rel=0.02)
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(("make", "shape"), [(mlp, ROWS), (ConvNet, IMAGES), (Recurrent, SERIES)])
def test_backward_in_the_training_thread_is_bit_exact(make, shape):
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        plain, ours, [outcome] = plain_and_with(make, shape, "backward-thread")
    finally:
        torch.use_deterministic_algorithms(False)
    assert outcome.status == "applied", outcome.why
    assert ours[0] == plain[0]
    assert torch._C._is_multithreading_enabled()


def test_the_cudnn_autotuner_stays_close_and_is_restored():
    plain, ours, [outcome] = plain_and_with(ConvNet, IMAGES, "cudnn-autotuner")
    assert outcome.status == "applied", outcome.why
    assert ours[0] == pytest.approx(plain[0], rel=1e-3)
    assert not torch.backends.cudnn.benchmark


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("optimizer", [fused, lambda model: torch.optim.SGD(model.parameters(), lr=1e-2)])
@pytest.mark.parametrize(("make", "shape"), [(mlp, ROWS), (ConvNet, IMAGES)])
def test_autocast_changes_losses_only_slightly(precision, optimizer, make, shape):
    plain, ours, [outcome] = plain_and_with(make, shape, f"autocast={precision}", optimizer=optimizer, steps=12)
    assert outcome.status == "applied", outcome.why
    assert ours[0] == pytest.approx(plain[0], rel=0.05)
    assert ours[0] != plain[0]


def test_autocast_refuses_bf16_for_recurrent_layers():
    plain, ours, [outcome] = plain_and_with(Recurrent, SERIES, "autocast=bf16")
    assert outcome.status == "refused"
    assert ours[0] == plain[0]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_autocast_with_a_fused_optimizer_never_waits(precision):
    """In this mode torch raises where the host waits for the device."""
    with hotlap.enable(None, with_=[f"autocast={precision}"]):
        model = mlp().cuda()
        opt = fused(model)
        x, y = torch.randn(ROWS, device="cuda"), torch.arange(8, device="cuda") % 4
        for step in range(8):
            if step == 5:
                torch.cuda.set_sync_debug_mode("error")
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
            opt.zero_grad()
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("optimizer", [fused, lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2)])
def test_channels_last_stays_close_and_is_restored(optimizer):
    plain, ours, [outcome] = plain_and_with(ConvNet, IMAGES, "channels-last", optimizer=optimizer)
    assert outcome.status == "applied", outcome.why
    assert ours[0] == pytest.approx(plain[0], rel=1e-3)
    assert ours[1].body[3].weight.is_contiguous()  # taken back


def test_inplace_activations_are_bit_exact():
    plain, ours, [outcome] = plain_and_with(mlp, ROWS, "inplace-activations")
    assert outcome.status == "applied", outcome.why
    assert ours[0] == plain[0]


def test_activation_checkpointing_is_bit_exact():
    plain, ours, [outcome] = plain_and_with(Blocks, ROWS, "activation-checkpointing=always")
    assert outcome.status == "applied", outcome.why
    assert ours[0] == plain[0]


def test_activation_checkpointing_applies_only_when_memory_is_short(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (5, 100))
    _, _, [outcome] = plain_and_with(Blocks, ROWS, "activation-checkpointing")
    assert outcome.status == "applied", outcome.why
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60, 100))
    _, _, [outcome] = plain_and_with(Blocks, ROWS, "activation-checkpointing")
    assert outcome.status == "no effect"


def test_scattered_recurrent_weights_are_flattened():
    class Copied(Recurrent):
        def to(self, *args, **kwargs):
            return copy.deepcopy(super().to(*args, **kwargs))

    plain, ours, [outcome] = plain_and_with(Copied, SERIES, "recurrent")
    assert outcome.status == "applied", outcome.why
    assert ours[0] == plain[0]

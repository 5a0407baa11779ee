"""Losses read ahead of the GPU's queue are the same numbers, and arrive while the backward still runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hotlap

pytestmark = pytest.mark.cuda
STEPS = 40


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()


def train(read, width=64, scaled=False, autocast=False):
    """The values read, and for each whether the device was still busy afterwards."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=scaled)
    values, busy = [], []
    for _ in range(STEPS):
        inputs = torch.randn(256, width, device="cuda")
        with torch.autocast("cuda", torch.float16, enabled=autocast):
            outputs = model(inputs)
            fit, size = nn.functional.mse_loss(outputs.float(), inputs), outputs.float().square().mean()
        loss = fit + 0.1 * size
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        values.append(read(loss, fit, size))
        busy.append(not torch.cuda.current_stream().query())
    return values, busy


READS = {
    "item": lambda loss, fit, size: loss.item(),
    "twice": lambda loss, fit, size: (loss.item(), f"{loss:.9f}"),
    "detached": lambda loss, fit, size: loss.detach().cpu().item(),
    "float": lambda loss, fit, size: float(loss.detach()),
    "parts": lambda loss, fit, size: (fit.item(), size.item(), loss.item()),
    "later": lambda loss, fit, size: (loss * 2).item() + loss.item(),
}


@pytest.mark.parametrize(
    "more", [[], ["cuda-graphs"], ["backward-thread"]], ids=lambda names: "-".join(names) or "alone"
)
@pytest.mark.parametrize("name", READS)
def test_values_are_equal_to_the_bit(name, more):
    plainly, _ = train(READS[name])
    with hotlap.enable(None, with_=["early-read", *more]) as enabled:
        values, _ = train(READS[name])
        (outcome,) = [outcome for outcome in enabled.outcomes if outcome.name == "early-read"]
    assert values == plainly
    assert outcome.status == "applied"


@pytest.mark.parametrize(("scaled", "autocast"), [(True, True), (False, True)])
def test_values_are_equal_in_half_precision(scaled, autocast):
    plainly, _ = train(READS["parts"], scaled=scaled, autocast=autocast)
    with hotlap.enable(None, with_=["early-read"]):
        values, _ = train(READS["parts"], scaled=scaled, autocast=autocast)
    assert values == plainly


@pytest.mark.parametrize("name", ["item", "parts"])
def test_the_host_does_not_wait_for_the_backward(name):
    _, busy = train(READS[name], width=8192)
    assert not any(busy)
    with hotlap.enable(None, with_=["early-read"]):
        _, busy = train(READS[name], width=8192)
    assert sum(busy) > STEPS // 2


def test_an_accuracy_after_the_backward_is_right():
    def accuracy(loss, fit, size):
        return (loss.item(), (size.detach() > 0.5).float().item(), size.detach().item())

    plainly, _ = train(accuracy)
    with hotlap.enable(None, with_=["early-read"]):
        assert train(accuracy)[0] == plainly

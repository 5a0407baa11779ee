"""The host entries on a GPU leave the losses unchanged and really skip clean-up calls."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import hotlap

pytestmark = pytest.mark.cuda
STEPS = 40


@pytest.fixture
def emptied(monkeypatch):
    """A list that grows by one whenever the cache is really emptied."""
    calls = []
    empty = torch._C._cuda_emptyCache
    monkeypatch.setattr(torch._C, "_cuda_emptyCache", lambda: calls.append(empty()))
    return calls


def train() -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(STEPS):
        loss = model(torch.randn(32, 64, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        gc.collect()
        torch.cuda.empty_cache()
    return torch.stack(losses).tolist()


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize("names", [["throttled-cleanup"], ["gc-pauses"], ["throttled-cleanup", "gc-pauses"]])
def test_losses_are_equal_to_the_bit_and_the_cache_is_rarely_emptied(names, emptied):
    plainly = train()
    assert len(emptied) == STEPS
    emptied.clear()
    with hotlap.enable(None, with_=names):
        losses = train()
    assert losses == plainly
    assert len(emptied) == (STEPS if names == ["gc-pauses"] else pytest.approx(3, abs=1))


def test_synchronize_is_skipped_when_requested():
    from torch.profiler import ProfilerActivity, profile

    parameter = nn.Parameter(torch.ones(4, device="cuda"))
    optimizer = torch.optim.SGD([parameter], lr=0.1)

    def steps() -> int:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            for _ in range(STEPS):
                parameter.grad = torch.ones_like(parameter)
                optimizer.step()
                torch.cuda.synchronize()
        return sum(event.count for event in seen.key_averages() if "DeviceSynchronize" in event.key)

    plainly = steps()
    with hotlap.enable(None, with_=["throttled-cleanup=all"]):
        seldom = steps()
    assert plainly >= STEPS
    assert seldom < plainly - STEPS // 2

"""anomaly-mode and set-to-none: said, never changed."""

import pytest
import torch
from catalog.compute_models import ROWS, mlp, train
from observations import observation, settings
from torch import nn

import hotlap
from hotlap.catalog import entries


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()
    torch.autograd.set_detect_anomaly(False)


def test_anomaly_mode_is_reported_and_stays_on():
    torch.autograd.set_detect_anomaly(True)
    with hotlap.enable(None, with_=["anomaly-mode"]) as under:
        train(mlp, ROWS, steps=3)
        [outcome] = under.outcomes
    assert outcome.status == "refused"
    assert "set_detect_anomaly(True)" in outcome.why
    assert torch.is_anomaly_enabled()


def test_anomaly_mode_that_is_off():
    with hotlap.enable(None, with_=["anomaly-mode"]) as under:
        train(mlp, ROWS, steps=5)
        assert under.outcomes[0].why == "anomaly mode is off"


def test_detect_anomaly_mode():
    detect = entries()["anomaly-mode"].detect
    assert detect(observation(settings=settings(anomaly_mode=True))).most == pytest.approx(0.9)
    assert detect(observation(settings=settings())) is None


@pytest.mark.parametrize("call", [lambda opt: opt.zero_grad(set_to_none=False), lambda opt: opt.zero_grad(False)])
def test_zeroed_gradients_are_reported_and_stay(call):
    before = [dict(vars(torch.optim.Optimizer)), dict(vars(nn.Module))]
    with hotlap.enable(None, with_=["set-to-none"]) as under:
        _, module, _, _ = train(mlp, ROWS, between=lambda step, module, opt: call(opt))
        assert all(one.grad is not None for one in module.parameters())
        assert under.outcomes[0].status == "refused"
        assert "set_to_none=False" in under.outcomes[0].why
    assert [dict(vars(torch.optim.Optimizer)), dict(vars(nn.Module))] == before


def test_dropped_gradients_are_fine():
    with hotlap.enable(None, with_=["set-to-none"]) as under:
        train(mlp, ROWS, between=lambda step, module, opt: module.zero_grad())
        assert under.outcomes[0].status == "no effect"
        assert vars(torch.optim.Optimizer)["zero_grad"].__module__ != "hotlap.runtime.site"

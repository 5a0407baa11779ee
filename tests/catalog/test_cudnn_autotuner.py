"""cudnn-autotuner applies only to convolutions with steady shapes. The switch itself exists without a GPU."""

import pytest
import torch
from catalog.compute_models import IMAGES, ROWS, ConvNet, mlp, train
from observations import device, kernel, model, observation, settings

from hotlap.catalog import entries
from hotlap.catalog.cudnn_autotuner.apply import apply
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.runtime.root_discovery import RootDiscovery
from hotlap.runtime.site import Site


@pytest.fixture
def site():
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    made = Site("cudnn-autotuner", entries()["cudnn-autotuner"].code, None, torch, seams, RootDiscovery(seams))
    apply(made)
    yield made
    made.close()
    seams.close()
    assert not torch.backends.cudnn.benchmark


def test_switches_on_for_steady_shapes(site):
    on = []
    train(ConvNet, IMAGES, between=lambda *_: on.append(torch.backends.cudnn.benchmark))
    assert on == [False] * 5 + [True] * 3
    assert site.outcome.status == "applied"


def test_has_no_effect_on_models_without_convolutions(site):
    train(mlp, ROWS)
    assert site.outcome.status == "no effect"
    assert not torch.backends.cudnn.benchmark


def test_refuses_changing_shapes(site):
    train(ConvNet, lambda step: (8, 3, 8, 8 + step))
    assert site.outcome.status == "refused"
    assert not torch.backends.cudnn.benchmark


def test_shapes_that_start_changing_withdraw_it(site):
    train(ConvNet, lambda step: (8, 3, 8, max(8, step)), steps=18)
    assert site.outcome.status == "withdrawn"


def test_deterministic_programs_are_left_alone(site):
    torch.backends.cudnn.deterministic = True
    try:
        train(ConvNet, IMAGES)
    finally:
        torch.backends.cudnn.deterministic = False
    assert "deterministic" in site.outcome.why


def test_estimates_its_gain():
    detect = entries()["cudnn-autotuner"].detect
    on_gpu = {
        "models": (model(device="cuda:0", layers={"Conv2d": 3}),),
        "device": device(8.0, kernels=(kernel("convolution", 0.5),)),
        "settings": settings(),
    }
    assert detect(observation(**on_gpu)).most == pytest.approx(0.4)
    assert detect(observation(**on_gpu | {"settings": settings(cudnn_benchmark=True)})) is None
    assert detect(observation(**on_gpu | {"models": (model(device="cuda:0"),)})) is None

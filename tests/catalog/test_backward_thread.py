"""Backward runs in the training thread where one GPU is in use. What needs a GPU is in tests/cuda."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hotlap.catalog import entries
from hotlap.catalog.backward_thread.apply import Backwards
from hotlap.catalog.backward_thread.detect import detect
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.runtime.root_discovery import RootDiscovery
from hotlap.runtime.site import Site
from tests.observations import model, observation


def on(*devices):
    tensors = [SimpleNamespace(device=device) for device in devices]
    return SimpleNamespace(parameters=lambda: tensors, buffers=list)


@pytest.fixture
def site():
    seams = Seams(torch, Guard(strict=True))
    site = Site("backward-thread", entries()["backward-thread"].code, None, torch, seams, RootDiscovery(seams))
    yield site
    site.close()
    assert torch._C._is_multithreading_enabled()


def test_one_gpu_needs_no_second_thread(site):
    backwards = Backwards(site)
    backwards.begin()
    backwards._known(on("cuda:0", "cuda:0"))
    assert site.outcome.status == "applied"
    assert not torch._C._is_multithreading_enabled()
    threads = []
    weight = nn.Parameter(torch.ones(1))
    weight.register_hook(lambda _: threads.append(threading.get_ident()))
    (weight * 2).sum().backward()
    assert threads == [threading.get_ident()]
    site.close()
    assert torch._C._is_multithreading_enabled()


def test_several_devices_keep_their_backward_threads(site):
    backwards = Backwards(site)
    backwards.begin()
    backwards._known(on("cuda:0", "cuda:1"))
    assert (site.outcome.status, torch._C._is_multithreading_enabled()) == ("no effect", True)


def test_a_second_model_on_another_gpu_restores_the_threads(site):
    backwards = Backwards(site)
    backwards.begin()
    backwards._known(on("cuda:0"))
    backwards._known(on("cuda:1"))
    assert torch._C._is_multithreading_enabled()


def test_a_model_on_the_host_is_left_alone(site):
    backwards = Backwards(site)
    backwards.begin()
    backwards._known(on("cpu"))
    assert "already runs in the training thread" in site.outcome.why
    assert torch._C._is_multithreading_enabled()


def test_a_program_that_sets_it_itself_keeps_its_setting(site):
    torch.autograd.set_multithreading_enabled(False)
    try:
        backwards = Backwards(site)
        backwards.begin()
        backwards._known(on("cuda:0"))
        assert "already switched" in site.outcome.why
        site.close()
        assert not torch._C._is_multithreading_enabled()
    finally:
        torch.autograd.set_multithreading_enabled(True)


def test_estimates_its_gain():
    assert detect(observation()) is None  # on the host
    short, long = (detect(observation(step=step, models=(model(device="cuda:0"),))) for step in (1.0, 100.0))
    assert short.most == pytest.approx(0.2)
    assert long.most == pytest.approx(0.002)

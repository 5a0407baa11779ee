"""tf32 is set through the interface that keeps both settings in step, and the program's own choice stays."""

import importlib
import warnings

import pytest
import torch
from observations import device, kernel, model, observation, settings
from torch import nn

import hotlap
from hotlap.catalog import entries
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.runtime.site import Site

tf32 = importlib.import_module("hotlap.catalog.tf32.apply")


@pytest.fixture
def site():
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    made = Site("tf32", entries()["tf32"].code, None, torch, seams, None)
    yield made
    made.close()
    seams.close()
    torch.set_float32_matmul_precision("highest")


def step():
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter], lr=0.1).step()


def test_sets_tf32_without_a_warning_and_restores_it(site):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tf32.apply(site)
        assert torch.get_float32_matmul_precision() == "high"
        step()  # parameters on the CPU tell nothing about a GPU
        site.close()
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(
    ("chosen", "capability", "status"),
    [("high", (9, 0), "applied"), ("high", (7, 5), "no effect"), ("medium", (9, 0), "no effect")],
)
def test_reports_the_setting_after_a_step_on_a_gpu(site, answering, chosen, capability, status):
    answering(torch.cuda, get_device_capability=capability)
    on_gpu = type("Parameter", (), {"is_cuda": True, "device": "cuda:0"})
    optimizer = type("Optimizer", (), {"param_groups": [{"params": [on_gpu]}]})
    tf32.apply(site)
    torch.set_float32_matmul_precision(chosen)
    tf32._report(site, optimizer)
    assert site.outcome.status == status
    site.close()
    assert torch.get_float32_matmul_precision() == {"applied": "highest"}.get(status, tf32.precision(torch))


def test_notices_a_later_choice_without_checking_every_step(site, monkeypatch):
    questions = []
    monkeypatch.setattr(tf32, "_report", lambda site, optimizer: questions.append(torch.get_float32_matmul_precision()))
    tf32.apply(site)
    for number in range(tf32.EVERY + 2):
        if number == 5:
            torch.set_float32_matmul_precision("medium")
        step()
    assert questions == ["high", "medium"]


def test_respects_the_programs_choice_by_the_older_interface(site):
    torch.set_float32_matmul_precision("medium")
    tf32.apply(site)
    assert site.outcome.status == "no effect"
    site.close()
    assert torch.get_float32_matmul_precision() == "medium"


def test_respects_the_programs_choice_by_the_newer_interface(site, monkeypatch):
    """The older interface cannot be read in that case."""

    def mixed():
        raise RuntimeError("you have used mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda _: pytest.fail("it was set"))
    tf32.apply(site)
    assert site.outcome.status == "no effect"
    site.close()
    monkeypatch.undo()


def test_gpu_entries_do_nothing_without_a_gpu(answering):
    answering(torch.cuda, device_count=0)
    with hotlap.enable(None, with_=["tf32", "cudnn-autotuner", "recurrent"]) as enabled:
        assert {outcome.why for outcome in enabled.outcomes} == {"no GPU that torch can use"}
        assert torch.get_float32_matmul_precision() == "highest"


def test_estimates_its_gain():
    detect = entries()["tf32"].detect
    on_gpu = {
        "models": (model(device="cuda:0"),),
        "device": device(8.0, kernels=(kernel("matmul", 0.5),)),
        "settings": settings(matmul_precision="highest"),
    }
    assert detect(observation(**on_gpu)).most == pytest.approx(0.4)
    assert detect(observation(**on_gpu | {"settings": settings(matmul_precision="high")})) is None
    assert detect(observation()) is None

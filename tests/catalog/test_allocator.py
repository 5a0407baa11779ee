"""The allocator's setting reaches the command before torch starts, and a setting of the user's takes precedence."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

from hotlap.catalog.allocator.apply import _look, environment, expandable
from hotlap.catalog.allocator.detect import detect
from hotlap.plan.choose import variables
from hotlap.records.plan import Choice
from tests.observations import memory, observation, on_cuda

allocator = importlib.import_module("hotlap.catalog.allocator.apply")


@pytest.fixture(autouse=True)
def driver(tmp_path, constants):
    constants(allocator, DRIVERS=(tmp_path,))


def test_sets_nothing_without_a_gpu(constants, tmp_path):
    constants(allocator, DRIVERS=(tmp_path / "none",))
    assert environment(None, {}) == {}


def test_sets_both_variables_or_neither():
    setting = "expandable_segments:True"
    assert environment(None, {}) == {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting}
    assert environment(None, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}) == {}
    assert environment(None, {"PYTORCH_ALLOC_CONF": ""}) == {}


def test_a_command_gets_the_setting_and_the_users_own_stays():
    choices = (Choice(name="allocator"),)
    assert variables(choices, {"HOME": "/"})["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert variables(choices, {"PYTORCH_ALLOC_CONF": "backend:native"}) == {}


class Spoken:
    def __init__(self, initialized, setting):
        snapshot = {"allocator_settings": {"expandable_segments": setting}}
        cuda = SimpleNamespace(is_initialized=lambda: initialized, memory=SimpleNamespace(_snapshot=lambda: snapshot))
        self.torch, self.seams, self.said = SimpleNamespace(cuda=cuda), object(), []

    def close(self):
        self.said.append("done")

    def applied(self, message):
        self.said.append(f"applied: {message}")

    def no_effect(self, why):
        self.said.append(f"no effect: {why}")


def test_reports_what_the_allocator_made_of_it():
    for initialized, setting, said in [
        (True, True, "applied: segments of device memory grow"),
        (True, False, "no effect: the allocator has the user's own setting, or torch had started before hotlap"),
        (False, True, "no effect: the training does not use the GPU"),
    ]:
        site = Spoken(initialized, setting)
        _look(site)
        assert site.said == [said, "done"]
    assert not expandable({})


def test_estimates_a_gain_where_memory_is_short_and_fragmented():
    assert detect(observation()) is None
    short = memory(peak_device_mb=40_000.0, reserved_device_mb=70_000.0, total_device_mb=80_000.0)
    assert "43% of the reserved device memory" in detect(on_cuda(memory=short)).why
    roomy = memory(peak_device_mb=4_000.0, reserved_device_mb=7_000.0, total_device_mb=80_000.0)
    assert detect(on_cuda(memory=roomy)) is None

"""gc-pauses runs full collections rarely and frees all that is garbage."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
import weakref
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from harness import HOTLAP, bare
from torch import nn
from torch.utils.data import DataLoader

import hotlap
from hotlap.catalog.gc_pauses.apply import WARM, Pauses
from tests.observations import observation

pytestmark = pytest.mark.usefixtures("thawed")


class Cycle:
    def __init__(self):
        self.me = self


@pytest.fixture
def step():
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    return torch.optim.SGD([parameter], lr=0.1).step


@pytest.fixture
def enable(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield lambda name="gc-pauses": hotlap.enable(None, with_=[name])
    hotlap.disable()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_freezes_existing_objects_once_warm_and_restores_everything(enable, step):
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    enabled = enable()
    for _ in range(WARM - 1):
        step()
    assert gc.get_freeze_count() == 0
    step()
    assert gc.get_freeze_count() > 1000
    assert gc.get_threshold()[:2] == thresholds[:2]
    assert gc.get_threshold()[2] > 1_000_000
    assert enabled.outcomes[0].status == "applied"
    assert "full collections between epochs" in enabled.outcomes[0].why
    hotlap.disable()
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == thresholds
    assert gc.callbacks == callbacks


def test_thresholds_set_by_the_program_meanwhile_stay(enable, step):
    before = gc.get_threshold()
    enable()
    for _ in range(WARM):
        step()
    gc.set_threshold(123, 4, 5)
    hotlap.disable()
    assert gc.get_threshold() == (123, 4, 5)
    gc.set_threshold(*before)


def test_the_programs_own_collection_frees_frozen_garbage_too(enable, step):
    enable()
    cycle = Cycle()
    reference = weakref.ref(cycle)
    for _ in range(WARM):
        step()
    del cycle
    assert reference() is not None
    gc.collect()
    assert reference() is None
    assert gc.get_freeze_count() > 1000


def test_frozen_objects_are_still_listed(enable, step):
    enable()
    cycle = Cycle()
    for _ in range(WARM):
        step()
    assert any(tracked is cycle for tracked in gc.get_objects())
    assert gc.get_freeze_count() > 1000


def test_get_referrers_finds_frozen_objects_and_nothing_of_hotlap(enable, step):
    cycle = Cycle()
    held = {"cycle": cycle}
    before = [id(referrer) for referrer in gc.get_referrers(cycle)]
    plain = gc.get_referrers
    enable()
    for _ in range(WARM):
        step()
    assert id(held) in before
    assert sorted(id(referrer) for referrer in gc.get_referrers(cycle)) == sorted(before)
    assert gc.get_freeze_count() > 1000
    hotlap.disable()
    assert gc.get_referrers is plain


def test_a_full_collection_runs_every_requested_number_of_steps(enable, step):
    enabled = enable("gc-pauses=10")
    for _ in range(WARM):
        step()
    full = gc.get_stats()[2]["collections"]
    for _ in range(30):
        step()
    list(DataLoader([1, 2]))
    assert gc.get_stats()[2]["collections"] == full + 3
    assert "every 10 steps" in enabled.outcomes[0].why


def test_a_collector_switched_off_or_frozen_by_the_program_is_left_alone(enable, step):
    gc.disable()
    enabled = enable()
    for _ in range(WARM):
        step()
    gc.enable()
    assert "switched the garbage collector off" in enabled.outcomes[0].why
    assert gc.get_freeze_count() == 0
    gc.freeze()
    enabled = enable()
    for _ in range(WARM):
        step()
    gc.unfreeze()
    assert "freezes the garbage collector itself" in enabled.outcomes[0].why


def test_its_collections_take_at_most_a_hundredth_of_the_time():
    now = SimpleNamespace(time=0.0)
    later = []
    site = SimpleNamespace(
        value=None,
        ledger=SimpleNamespace(later=later.append, wrap=lambda *_: None),
        applied=lambda message: None,
        replace=lambda *_: None,
    )
    pauses = Pauses(site, clock=lambda: now.time)
    made = []

    def slow(phase, info):
        if info["generation"] == 2 and phase == "start":
            made.append(now.time)
            now.time += 1.0

    try:
        for _ in range(WARM):
            pauses.stepped()
        gc.callbacks.append(slow)  # appended after hotlap's callback, so that each collection takes a second
        for _ in range(400):
            now.time += 1.0
            pauses.stepped()
            pauses.epoch_begins()
    finally:
        gc.callbacks.remove(slow)
        later[0]()
    assert len(made) == pytest.approx(400 / 100, abs=1)
    assert min(later - earlier for earlier, later in pairwise(made)) >= 100


def test_an_entry_that_is_switched_on_anew_does_not_collect_at_once(enable, step):
    for _ in range(3):
        enable()
        for _ in range(WARM):
            step()
        full = gc.get_stats()[2]["collections"]
        list(DataLoader([1, 2]))
        hotlap.disable()
        assert gc.get_stats()[2]["collections"] == full


def test_its_collections_still_run_beside_throttled_cleanup(enable, step):
    with hotlap.enable(None, with_=["gc-pauses=1", "throttled-cleanup"]):
        for _ in range(WARM):
            step()
        full = gc.get_stats()[2]["collections"]
        for _ in range(2):  # a second each: all objects of the tests are looked at
            step()
            gc.collect()
        assert gc.get_stats()[2]["collections"] >= full + 2


def test_estimates_its_gain_from_the_time_spent_collecting():
    from hotlap.catalog.gc_pauses.detect import detect

    assert detect(observation()) is None
    assert detect(observation(shares={"garbage": 0.07})).most == pytest.approx(0.07)


def test_the_program_waits_for_a_collection_in_another_thread(constants):
    constants(importlib.import_module("hotlap.catalog.gc_pauses.apply"), PATIENCE=10.0)
    pauses = Pauses(SimpleNamespace(value=None))
    pauses._collecting("start", {"generation": 0})
    threading.Timer(0.02, pauses._collecting, ("stop", {"generation": 0})).start()
    pauses._leave()
    assert not pauses._under_way


LEFT_IN_A_CYCLE = """
import torch


class Left:
    def __init__(self):
        self.me = self

    def __del__(self):
        print("gone")


left = Left()
parameter = torch.nn.Parameter(torch.zeros(1))
parameter.grad = torch.zeros(1)
optimizer = torch.optim.SGD([parameter], lr=0.1)
for _ in range(10):
    optimizer.step()
"""


def test_objects_left_in_cycles_are_finalised_at_exit(tmp_path):
    (tmp_path / "train.py").write_text(LEFT_IN_A_CYCLE)
    ran = bare([*HOTLAP, "run", "--with", "gc-pauses", sys.executable, "train.py"], tmp_path)
    assert ran.stdout == "gone\n", ran.stderr
    assert "applied: gc-pauses" in ran.stderr

"""Clean-up calls of the loop are made seldom; calls elsewhere are all made."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch import nn

import hotlap
from hotlap.catalog.throttled_cleanup.lines import EVERY, TRUSTED, CleanupLine
from hotlap.catalog.throttled_cleanup.memory import Memory, MemoryUse
from tests.observations import observation, sync

MB = 1 << 20


@pytest.fixture
def collections():
    """How many full collections the program made. What was there before is frozen: walking it takes long."""
    made = SimpleNamespace(count=0)

    def counting(phase, info):
        made.count += phase == "start" and info["generation"] == 2

    gc.disable()
    gc.freeze()
    gc.callbacks.append(counting)
    yield made
    gc.callbacks.remove(counting)
    gc.enable()


@pytest.fixture
def step():
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    return torch.optim.SGD([parameter], lr=0.1).step


@pytest.fixture
def enabled(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    with hotlap.enable(None, with_=["throttled-cleanup"]) as enabled:
        yield enabled


def test_collections_in_the_loop_are_made_once_in_a_hundred_times(enabled, collections, step):
    for _ in range(3 + 2 * EVERY):
        step()
        gc.collect()
    assert collections.count == pytest.approx(3 + 2, abs=1)
    (outcome,) = enabled.outcomes
    assert outcome.status == "applied"
    assert "gc.collect() at test_throttled_cleanup.py:" in outcome.why
    assert f"once in {EVERY} times" in outcome.why


def test_collections_before_the_training_and_between_two_are_all_made(enabled, collections, step):
    for _ in range(5):
        gc.collect()
    for _ in range(5):
        for _ in range(6):
            step()
        gc.collect()
    assert collections.count == 10
    assert enabled.outcomes[0].status == "no effect"


def test_collections_between_trainings_of_few_steps_are_all_made(enabled, collections):
    for _ in range(10):
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1).step()
        gc.collect()
    assert collections.count == 10
    assert enabled.outcomes[0].status == "no effect"


def test_a_helper_called_from_the_loop_and_after_it_counts_as_two_places(enabled, collections, step):
    def clean():
        gc.collect()

    for _ in range(20):
        step()
        clean()
    in_loop = collections.count
    clean()
    assert collections.count == in_loop + 1


def test_a_number_that_is_used_is_the_true_one(enabled, collections, step):
    found = []
    for _ in range(8):
        step()
        found.append(gc.collect())
    assert collections.count == 8
    assert enabled.outcomes[0].status == "no effect"


def test_torchs_own_calls_are_all_made(enabled, collections, step):
    """Ahead of a capture it clears up."""
    names = {"__name__": "torch.cuda.graphs"}
    exec("import gc\ndef clear():\n    gc.collect()", names)
    for _ in range(10):
        step()
        names["clear"]()
    assert collections.count == 10


def test_young_generations_are_left_alone(enabled, step):
    young = gc.get_stats()[0]["collections"]
    for _ in range(20):
        step()
        gc.collect(0)
    assert gc.get_stats()[0]["collections"] >= young + 20


@pytest.mark.parametrize(("value", "times"), [("memory", 30), ("all", 4)])
def test_synchronize_is_left_alone_unless_asked_for(value, times, step, monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty_cache"))
    with hotlap.enable(None, with_=[f"throttled-cleanup={value}"]):
        for _ in range(30):
            step()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    assert calls.count("synchronize") == pytest.approx(times, abs=1)
    assert calls.count("empty_cache") == pytest.approx(4, abs=1)


@pytest.mark.parametrize(("free", "times"), [(0.5, 4), (0.05, 4 + 2)])
def test_a_cache_is_emptied_again_only_where_memory_is_short(free, times, step, monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(free * 1e9), int(1e9)))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty_cache"))
    with hotlap.enable(None, with_=["throttled-cleanup"]):
        for _ in range(3 + 2 * EVERY):
            step()
            torch.cuda.empty_cache()
    assert len(calls) == pytest.approx(times, abs=1)


@pytest.fixture
def held(monkeypatch):
    """The memory as a test says it is; a collection frees what is garbage."""
    memory = SimpleNamespace(live=MemoryUse(1000 * MB, 0), garbage=MemoryUse(0, 0))

    def freeing(phase, info):
        if phase == "stop" and info["generation"] == 2:
            memory.garbage = MemoryUse(0, 0)

    def reading(_):
        return MemoryUse(*(live + dead for live, dead in zip(memory.live, memory.garbage, strict=True)))

    monkeypatch.setattr(Memory, "held", reading)
    gc.callbacks.append(freeing)
    yield memory
    gc.callbacks.remove(freeing)


@pytest.mark.parametrize("where", ["host", "device"])
def test_a_collection_is_made_when_memory_has_grown_since_the_last(enabled, collections, step, held, where):
    grew = []
    for k in range(50):
        step()
        held.garbage = held.garbage._replace(**{where: getattr(held.garbage, where) + 10 * MB})
        made = collections.count
        gc.collect()
        if collections.count > made:
            grew.append(k)
    # 70 MB are more than 64: of use, so three more are made
    assert grew == [0, 1, 2, 9, 10, 11, 12, 19, 20, 21, 22, 29, 30, 31, 32, 39, 40, 41, 42, 49]


def test_growth_of_a_twentieth_is_let_be(enabled, collections, step, held):
    held.live = MemoryUse(10_000 * MB, 0)
    for _ in range(50):
        step()
        held.garbage = MemoryUse(held.garbage.host + 10 * MB, 0)
        gc.collect()
    assert collections.count == TRUSTED


def test_memory_that_stays_asks_for_one_collection(enabled, collections, step, held):
    for k in range(50):
        step()
        if k == 20:
            held.live = MemoryUse(2000 * MB, 500 * MB)
        gc.collect()
    assert collections.count == TRUSTED + 1


def test_garbage_found_when_memory_has_grown_is_of_use_though_it_is_given_back_late(enabled, collections, step, held):
    for k in range(50):
        step()
        if k == 20:
            held.live = MemoryUse(2000 * MB, 0)
            cycle = []
            cycle.append(cycle)
            del cycle
        gc.collect()
    assert collections.count == TRUSTED + 1 + TRUSTED


def test_a_place_whose_collections_free_much_is_never_left_out(enabled, collections, step, held):
    for _ in range(50):
        step()
        held.garbage = MemoryUse(0, 65 * MB)
        gc.collect()
    assert collections.count == 50
    assert enabled.outcomes[0].status == "no effect"


def test_cycles_that_hold_much_do_not_pile_up(enabled, collections, step):
    process = psutil.Process()
    before = most = process.memory_info().rss
    for _ in range(60):
        step()
        cycle = [bytearray(b"1") * (32 * MB)]
        cycle.append(cycle)
        del cycle
        gc.collect()
        most = max(most, process.memory_info().rss)
    assert collections.count < 60
    assert most - before < max(64 * MB, 0.05 * before) + 3 * 32 * MB  # 60 of them hold 1920 MB


@pytest.mark.parametrize(("initialized", "device"), [(False, 0), (True, 7)])
def test_the_device_is_asked_only_where_the_program_uses_it(monkeypatch, initialized, device):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 7)
    held = Memory(torch).held()
    assert held.device == device
    assert held.host > 0


def test_closing_leaves_the_functions_as_they_were():
    owners = (gc, torch.cuda, torch.cuda.memory, torch.accelerator, torch.mps)
    before = [dict(vars(owner)) for owner in owners]
    with hotlap.enable(None, with_=["throttled-cleanup=all"]):
        assert vars(gc)["collect"] is not before[0]["collect"]
    assert [dict(vars(owner)) for owner in owners] == before


def test_a_place_reached_seldom_is_never_left_out():
    place = CleanupLine("train.py:1", result_used=False)
    assert not any(place.leave_out(step) for step in range(1, 1000, 6))
    assert [place.leave_out(step) for step in (2000, 2001, 2002, 2003, 2004)] == [False, False, False, True, True]


def test_what_it_could_gain_is_the_time_of_collecting_and_emptying():
    from hotlap.catalog.throttled_cleanup.detect import detect

    assert detect(observation()) is None
    seen = observation(10.0, shares={"garbage": 0.1}, syncs=(sync(kind="empty_cache", ms_per_step=2.0),))
    assert detect(seen).most == pytest.approx(0.3)

"""throttled-cleanup skips most clean-up calls of the loop; calls elsewhere all run."""

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
    """Counts the program's full collections. Existing objects are frozen, because walking them takes long."""
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


def test_collections_in_the_loop_run_once_in_a_hundred_calls(enabled, collections, step):
    for _ in range(3 + 2 * EVERY):
        step()
        gc.collect()
    assert collections.count == pytest.approx(3 + 2, abs=1)
    (outcome,) = enabled.outcomes
    assert outcome.status == "applied"
    assert "gc.collect() at test_throttled_cleanup.py:" in outcome.why
    assert f"once in {EVERY} times" in outcome.why


def test_collections_before_and_between_trainings_all_run(enabled, collections, step):
    for _ in range(5):
        gc.collect()
    for _ in range(5):
        for _ in range(6):
            step()
        gc.collect()
    assert collections.count == 10
    assert enabled.outcomes[0].status == "no effect"


def test_collections_between_short_trainings_all_run(enabled, collections):
    for _ in range(10):
        torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1).step()
        gc.collect()
    assert collections.count == 10
    assert enabled.outcomes[0].status == "no effect"


def test_a_helper_called_inside_and_after_the_loop_counts_as_two_places(enabled, collections, step):
    def clean():
        gc.collect()

    for _ in range(20):
        step()
        clean()
    in_loop = collections.count
    clean()
    assert collections.count == in_loop + 1


def test_a_return_value_that_is_used_is_the_true_one(enabled, collections, step):
    found = []
    for _ in range(8):
        step()
        found.append(gc.collect())
    assert collections.count == 8
    assert enabled.outcomes[0].status == "no effect"


def test_torchs_own_calls_all_run(enabled, collections, step):
    """Torch cleans up before it captures a graph."""
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
def test_synchronize_is_left_alone_unless_requested(value, times, step, monkeypatch):
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
def test_the_cache_is_emptied_again_only_where_memory_is_short(free, times, step, monkeypatch, answering):
    calls = []
    answering(torch.cuda, is_initialized=True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(free * 1e9), int(1e9)))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty_cache"))
    with hotlap.enable(None, with_=["throttled-cleanup"]):
        for _ in range(3 + 2 * EVERY):
            step()
            torch.cuda.empty_cache()
    assert len(calls) == pytest.approx(times, abs=1)


@pytest.fixture
def held(monkeypatch):
    """A test sets the memory in use, and a collection frees the garbage."""
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
def test_collects_when_memory_has_grown_since_the_last_collection(enabled, collections, step, held, where):
    grew = []
    for k in range(50):
        step()
        held.garbage = held.garbage._replace(**{where: getattr(held.garbage, where) + 10 * MB})
        made = collections.count
        gc.collect()
        if collections.count > made:
            grew.append(k)
    # 70 MB are more than 64: the collection was useful, so three more run
    assert grew == [0, 1, 2, 9, 10, 11, 12, 19, 20, 21, 22, 29, 30, 31, 32, 39, 40, 41, 42, 49]


def test_ignores_growth_of_a_twentieth(enabled, collections, step, held):
    held.live = MemoryUse(10_000 * MB, 0)
    for _ in range(50):
        step()
        held.garbage = MemoryUse(held.garbage.host + 10 * MB, 0)
        gc.collect()
    assert collections.count == TRUSTED


def test_memory_that_stays_in_use_triggers_one_collection(enabled, collections, step, held):
    for k in range(50):
        step()
        if k == 20:
            held.live = MemoryUse(2000 * MB, 500 * MB)
        gc.collect()
    assert collections.count == TRUSTED + 1


def test_garbage_found_counts_as_useful_though_its_memory_returns_late(enabled, collections, step, held):
    for k in range(50):
        step()
        if k == 20:
            held.live = MemoryUse(2000 * MB, 0)
            cycle = []
            cycle.append(cycle)
            del cycle
        gc.collect()
    assert collections.count == TRUSTED + 1 + TRUSTED


def test_a_place_whose_collections_free_much_is_never_skipped(enabled, collections, step, held):
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
def test_queries_the_device_only_where_the_program_uses_it(answering, initialized, device):
    answering(torch.cuda, is_initialized=initialized, memory_allocated=7)
    held = Memory(torch).held()
    assert held.device == device
    assert held.host > 0


def test_closing_restores_the_functions():
    owners = (gc, torch.cuda, torch.cuda.memory, torch.accelerator, torch.mps)
    before = [dict(vars(owner)) for owner in owners]
    with hotlap.enable(None, with_=["throttled-cleanup=all"]):
        assert vars(gc)["collect"] is not before[0]["collect"]
    assert [dict(vars(owner)) for owner in owners] == before


def test_a_place_reached_rarely_is_never_skipped():
    place = CleanupLine("train.py:1", result_used=False)
    assert not any(place.leave_out(step) for step in range(1, 1000, 6))
    assert [place.leave_out(step) for step in (2000, 2001, 2002, 2003, 2004)] == [False, False, False, True, True]


def test_estimates_its_gain_from_collecting_and_emptying():
    from hotlap.catalog.throttled_cleanup.detect import detect

    assert detect(observation()) is None
    seen = observation(10.0, shares={"garbage": 0.1}, syncs=(sync(kind="empty_cache", ms_per_step=2.0),))
    assert detect(seen).most == pytest.approx(0.3)

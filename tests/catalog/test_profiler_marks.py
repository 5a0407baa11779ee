"""Profiler marks are left out while no profiler runs, and complete while one does."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hotlap
from hotlap.catalog.profiler_marks.detect import detect
from tests.observations import observation

STEP, ZERO, BATCH = "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad", "enumerate(DataLoader)"
enter = torch.ops.profiler._record_function_enter_new


def train(steps=4):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for (inputs,) in DataLoader(TensorDataset(torch.randn(steps * 2, 3)), batch_size=2):
        optim.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optim.step()
        losses.append(loss.item())
    return losses


@pytest.fixture
def entered(monkeypatch):
    names = []

    def counted(name, args=None):
        names.append(name)
        return enter(name, args)

    monkeypatch.setattr(torch.ops.profiler, "_record_function_enter_new", counted)
    return names


@pytest.fixture
def at_work():
    with hotlap.enable(None, with_=["profiler-marks"]) as enabled:
        yield enabled


def test_makes_no_mark_while_no_profiler_runs(entered):
    plain = train()
    assert {STEP, ZERO} <= set(entered)
    entered.clear()
    with hotlap.enable(None, with_=["profiler-marks"]) as enabled:
        assert train() == plain
        assert enabled.outcomes[0].status == "applied"
    assert entered == []
    train()
    assert STEP in entered, "as before, once it is taken back"


def profiled():
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu) as profile, torch.profiler.record_function("mine"):
        train()
    return {
        average.key: average.count for average in profile.key_averages() if "#" in average.key or average.key == "mine"
    }


def test_a_profile_is_unchanged():
    plain = profiled()
    assert plain[STEP] == 4
    with hotlap.enable(None, with_=["profiler-marks"]):
        train()
        assert profiled() == plain
        train()


def test_handles_a_mark_open_when_a_profiler_starts_or_stops(at_work):
    mark = torch.profiler.record_function("outer")
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with mark:
        profile.start()
        with mark.__class__("inner"):
            profile.stop()
    with mark:  # used again
        pass


def test_an_execution_trace_without_a_profiler_has_all_marks(at_work, entered, tmp_path):
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "trace.json"))
    train()
    assert entered == []
    observer.start()
    train()
    observer.stop()
    assert entered.count(STEP) == 4
    train()
    observer.unregister_callback()
    assert entered.count(STEP) == 4


def test_handles_a_mark_open_when_it_is_closed():
    enabled = hotlap.enable(None, with_=["profiler-marks"])
    with torch.profiler.record_function("open"):
        hotlap.disable()
    assert enabled.outcomes[0].status == "applied"


def test_a_mark_reused_under_a_profiler_is_recorded(at_work):
    mark = torch.profiler.record_function("again")
    with mark:
        pass
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, mark:
        pass
    assert [average.count for average in profile.key_averages() if average.key == "again"] == [1]


def test_marks_still_end_with_a_future(at_work):
    future = torch.futures.Future()
    with torch.profiler.record_function("asynchronous") as mark:
        answer = mark._call_end_callbacks_on_future(future)
    future.set_result(3)
    assert answer.wait() == 3


def test_an_error_inside_a_mark_passes_through(at_work):
    with pytest.raises(ValueError, match="mine"), torch.profiler.record_function("failing"):
        raise ValueError("mine")


def test_leaves_marks_alone_when_a_profiler_may_be_started_from_outside(monkeypatch):
    monkeypatch.setenv("KINETO_USE_DAEMON", "1")
    with hotlap.enable(None, with_=["profiler-marks"]) as enabled:
        train()
        assert "started from outside" in enabled.outcomes[0].why


def test_estimates_the_most_it_can_gain():
    assert detect(observation(step=1.0)).most == pytest.approx(0.1)
    assert detect(observation(step=0.01)).most == 1.0

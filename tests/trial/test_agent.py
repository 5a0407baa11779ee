"""The agent in a trial counts steps alike in both arms, records losses and metrics, and ends the program in time."""

from __future__ import annotations

import json
import time
from itertools import count

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hotlap
from hotlap.observe.stop import WindowComplete
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.records.codec import from_json
from hotlap.records.session import Session
from hotlap.trial import metric
from hotlap.trial.agent import Agent
from hotlap.trial.order import Order, ProcessReport

DEFAULTS = {"steps": 12, "seed_shift": 0, "nudge": 0.0, "readings": 0, "metric": None, "tag": None}


@pytest.fixture
def enter(tmp_path):
    """Install the agent in this process as in a trial."""
    opened = []

    def enter(**order) -> Agent:
        session = Session(
            schema=1, folder=str(tmp_path), agent="", steps=None, warmup=None, max_seconds=1e9, full=False,
            ceiling=False, trace=False, started=time.time(),
        )  # fmt: skip
        seams = Seams(torch, Guard(strict=True))
        seams.open()
        opened.append(seams)
        agent = Agent(torch, session, seams, Order(schema=1, scratch=str(tmp_path / "s"), **DEFAULTS | order))
        agent.subscribe()
        opened.append(agent)
        return agent

    yield enter
    for seams_or_agent in opened:
        if isinstance(seams_or_agent, Seams):
            seams_or_agent.close()
        elif seams_or_agent._stopper is not None:
            seams_or_agent._stopper.remove()
    metric.take_to(None)


def report_of(folder) -> ProcessReport:
    (path,) = folder.glob("told-*.json")
    return from_json(ProcessReport, path.read_text(), str(path))


def train(steps, optimizers=1, loader=False, after_step=lambda step: None):
    """Return the losses as the program sees them, one sum per step."""
    torch.manual_seed(0)
    models = [nn.Linear(4, 1) for _ in range(optimizers)]
    steppers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
    data = TensorDataset(torch.randn(8 * steps, 4))
    batches = (
        DataLoader(data, batch_size=8) if loader else [(data.tensors[0][8 * i : 8 * i + 8],) for i in range(steps)]
    )
    losses = []
    for step, (inputs,) in enumerate(batches):
        total = 0.0
        for model, stepper in zip(models, steppers, strict=True):
            loss = model(inputs).square().mean()
            stepper.zero_grad()
            loss.backward()
            stepper.step()
            total += loss.detach().item()
        losses.append(total)
        after_step(step)
    return losses


@pytest.mark.parametrize("optimizers", [1, 2])
@pytest.mark.parametrize("loader", [False, True])
def test_a_step_is_what_the_user_counts_with_and_without_a_loader(optimizers, loader, enter, tmp_path):
    agent = enter(steps=100)
    losses = train(20, optimizers, loader)
    agent.process_ends()

    assert len(report_of(tmp_path).ends) == 20
    assert report_of(tmp_path).losses == tuple(losses)
    assert not report_of(tmp_path).done


def test_the_program_is_ended_after_the_requested_steps(enter, tmp_path):
    enter(steps=12)
    seen = []
    with pytest.raises(WindowComplete):
        train(100, after_step=seen.append)

    assert report_of(tmp_path).done
    assert len(report_of(tmp_path).ends) == 12
    assert len(seen) == 12, "one step further, whose end is where it stops"
    assert list(report_of(tmp_path).ends) == sorted(report_of(tmp_path).ends)
    assert 0 < report_of(tmp_path).began <= report_of(tmp_path).ends[0]


def test_a_step_skipped_by_the_scaler_still_counts(enter, tmp_path):
    agent = enter(steps=100)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        loss = model(torch.ones(1, 2)).sum() * (float("inf") if step == 2 else 1.0)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    agent.process_ends()

    assert len(report_of(tmp_path).ends) == 6
    losses = json.loads(next(tmp_path.glob("told-*.json")).read_text())["losses"]
    assert [index for index, loss in enumerate(losses) if loss == "nan"] == [2]


def test_several_backwards_of_one_step_are_one_loss(enter, tmp_path):
    agent = enter(steps=100)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(3):
        for _ in range(4):
            (model(torch.ones(1, 2)).square().sum() / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    agent.process_ends()

    whole = model(torch.ones(1, 2)).square().sum().item()
    assert report_of(tmp_path).losses == pytest.approx([whole] * 3)


def test_a_nudged_baseline_starts_equal_and_diverges_by_a_rounding(enter, tmp_path):
    plain = train(10)
    agent = enter(steps=100, nudge=2.0**-23)
    nudged = train(10)
    agent.process_ends()

    assert nudged[0] == plain[0]
    assert nudged[1:] != plain[1:]
    assert nudged == pytest.approx(plain, rel=1e-5)


def test_metrics_reported_by_the_program_are_recorded_with_their_step(enter, tmp_path):
    agent = enter(steps=100, metric="acc")

    def after_step(step):
        hotlap.metric("acc", torch.tensor(step / 10))
        hotlap.metric("other", 1.0)

    train(3, after_step=after_step)
    agent.process_ends()

    assert [(reading.name, reading.step, reading.value) for reading in report_of(tmp_path).readings] == [
        ("acc", 1, 0.0),
        ("acc", 2, pytest.approx(0.1)),
        ("acc", 3, pytest.approx(0.2)),
    ]


def test_a_metric_outside_a_tune_is_never_evaluated():
    class Untouchable:
        def __float__(self):
            raise AssertionError("read")

    hotlap.metric("acc", Untouchable())


def test_tensorboard_scalars_are_recorded_as_they_are_written(enter, tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    agent = enter(steps=100, tag="val/acc")
    with SummaryWriter(tmp_path / "board") as writer:
        train(2, after_step=lambda step: writer.add_scalar("val/acc", 0.5 + step, step))
        writer.add_scalar("other", 9.0)
    agent.process_ends()

    assert [(reading.name, reading.step, reading.value) for reading in report_of(tmp_path).readings] == [
        ("val/acc", 1, 0.5),
        ("val/acc", 2, 1.5),
    ]


def test_the_program_continues_past_the_steps_until_the_metric_is_read(enter, tmp_path):
    enter(steps=5, readings=1, metric="acc")
    with pytest.raises(WindowComplete):
        train(100, after_step=lambda step: hotlap.metric("acc", 1.0) if step == 20 else None)

    assert len(report_of(tmp_path).ends) == 21
    assert len(report_of(tmp_path).readings) == 1


class Clock:
    """Stands in for torch.cuda: each step takes the device a millisecond and the host no time."""

    def __init__(self):
        self.recorded, self.fractions, self.agent = [], [], None

    def Event(self, enable_timing):
        return Moment(self)

    def current_stream(self, device):
        return f"stream of {device}"

    def is_current_stream_capturing(self):
        return False

    def get_device_properties(self, device):
        return type("Properties", (), {"total_memory": 1000 << 20})

    def set_per_process_memory_fraction(self, fraction, device):
        self.fractions.append((fraction, device))


class Moment:
    def __init__(self, clock):
        self.clock = clock

    def record(self, stream):
        self.step = len(self.clock.agent.ends) + 1
        self.clock.recorded.append(stream)

    def query(self):
        return True

    def elapsed_time(self, other):
        return float(other.step - self.step)


@pytest.fixture
def on_a_device(enter, monkeypatch, answering):
    def enter_on_device(**order):
        agent, clock = enter(**order), Clock()
        first, clock.agent, ticks = agent._first_step, agent, count()
        monkeypatch.setattr(agent, "_now", lambda: 1e-4 * next(ticks))

        def first_step(optimizer):
            first(optimizer)
            agent.on_cuda, agent._device = True, "cuda:1"
            agent.torch = type("Torch", (), {"cuda": clock})
            agent._limit_memory({"cuda:1"})

        monkeypatch.setattr(agent, "_first_step", first_step)
        answering(agent, _write=None)
        return agent, clock

    return enter_on_device


def test_short_steps_on_a_device_are_timed_by_its_own_clock(on_a_device):
    agent, clock = on_a_device(steps=480)
    with pytest.raises(WindowComplete):
        train(600)
    marks = agent._marks()

    assert 40 <= len(marks) <= 60, "enough for a dozen blocks, too few to slow the steps down"
    assert marks[-1].steps == 480, "to the last step"
    assert all(mark.seconds == pytest.approx((mark.steps - marks[0].steps) / 1000) for mark in marks)
    assert set(clock.recorded) == {"stream of cuda:1"}, "the one that trains, whichever is current"


def test_torch_enforces_the_limit_of_device_memory(on_a_device):
    _, clock = on_a_device(steps=30, device_mb=250.0)
    train(3)

    assert clock.fractions == [(0.25, "cuda:1")]

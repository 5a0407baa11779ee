"""The agent observes real loops in this process and samples some of their steps."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hotlap.observe.agent import Agent
from hotlap.observe.summary import part_of
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.records.observation import BACKWARD, DATA, FORWARD, OPTIMIZER
from hotlap.records.session import Session

STEPS = 120


@pytest.fixture
def agent(tmp_path):
    session = Session(
        schema=1, folder=str(tmp_path), agent="", steps=STEPS, warmup=3, max_seconds=1e9, full=True, ceiling=False,
        trace=False, started=time.time(),
    )  # fmt: skip
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    agent = Agent(torch, session, seams)
    agent.subscribe()
    yield agent
    seams.close()


def plain(losses: list[float], steps: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(42, 4), torch.randn(42, 1)), batch_size=4)
    while len(losses) < steps:
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))


def without_loader(losses: list[float], steps: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(7, 4)
    for _ in range(steps):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))


def two_optimizers(losses: list[float], steps: int) -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
    inputs = torch.randn(5, 4)
    for _ in range(steps):
        total = 0.0
        for model, optimizer in zip((first, second), optimizers, strict=True):
            loss = model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        losses.append(total)


@pytest.mark.parametrize(("program", "samples"), [(plain, 42 / 11), (without_loader, 7), (two_optimizers, 5)])
@pytest.mark.parametrize("detail", [1.0, 0.3, 0.0])
def test_steps_samples_and_losses_do_not_depend_on_how_many_steps_are_sampled(agent, program, samples, detail):
    agent.sampled_seams.detail = detail
    losses: list[float] = []
    program(losses, 3 + STEPS + 3)
    agent.process_ends()
    seen = part_of(agent, complete=True).observation
    assert seen.steps == STEPS
    assert seen.samples_per_step == pytest.approx(samples, rel=0.02)
    losses_seen = seen.losses[: 3 + STEPS]
    assert losses_seen == pytest.approx(losses[: len(losses_seen)])
    assert len(losses_seen) == 3 + STEPS
    assert sum(seen.shares.values()) == pytest.approx(1.0)
    assert seen.steps_seen == pytest.approx(detail * STEPS, abs=0.15 * STEPS)


@pytest.mark.parametrize("detail", [1.0, 0.3])
def test_the_phases_of_unsampled_steps_follow_from_the_sampled_ones(agent, detail):
    agent.sampled_seams.detail = detail
    plain([], 3 + STEPS + 3)
    agent.process_ends()
    shares = part_of(agent, complete=True).observation.shares
    assert all(shares[phase] > 0 for phase in (DATA, FORWARD, BACKWARD, OPTIMIZER))


def by_hand(model, losses, gradients):
    inputs = torch.randn(7, 4)
    for _ in range(len(losses), len(losses) + 3 + STEPS + 20):
        loss = model(inputs).square().mean()
        for parameter, gradient in zip(model.parameters(), gradients(loss, model), strict=True):
            parameter.data -= 0.1 * gradient
        losses.append(float(loss.detach()))


def from_backward(loss, model):
    model.zero_grad()
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


def from_grad(loss, model):
    return torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("gradients", [from_backward, from_grad])
def test_without_an_optimizer_each_backward_is_a_step(agent, gradients):
    torch.manual_seed(0)
    model, losses = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)), []
    by_hand(model, losses, gradients)
    agent.process_ends()
    seen = part_of(agent, complete=True).observation
    assert seen.steps == STEPS
    assert set(seen.losses[1:]) <= set(losses)
    assert seen.shares[FORWARD] > 0 < seen.shares[BACKWARD]


def test_an_optimizer_made_later_defines_the_steps_from_then_on(agent):
    torch.manual_seed(0)
    model, losses = nn.Linear(4, 1), []
    for _ in range(6):
        from_backward(model(torch.ones(2, 4)).sum(), model)
    without_loader(losses, 3 + STEPS + 3)
    agent.process_ends()
    assert part_of(agent, complete=True).observation.steps == STEPS

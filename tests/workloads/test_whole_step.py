"""The step that all limit.py share trains every sample of an epoch, and preparing a graph leaves no trace."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from workload_modules import fresh_imports

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def whole_step() -> ModuleType:
    with fresh_imports("leak"):
        return importlib.import_module("whole_step")


class Small(nn.Module):
    """A model with a buffer and a frozen part, like the detector of banknotes."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.norm, self.head = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.frozen.requires_grad_(False)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.norm(self.frozen(rows)))


def build(whole_step: ModuleType, samples: int, batch_size: int, seen: list[list[int]]):
    torch.manual_seed(0)
    data, model = torch.randn(samples, 3), Small()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    whole_step.make_fused(optimizer, CPU)

    def batch_loss(indices: Tensor) -> Tensor:
        seen.append(indices.tolist())
        return model(data[indices]).square().mean()

    return whole_step.WholeStep(model, optimizer, batch_loss, samples, batch_size, CPU)


def test_a_shorter_last_batch_is_trained_too(whole_step) -> None:
    seen: list[list[int]] = []
    step = build(whole_step, 20, 8, seen)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    loss = step.epoch(order)
    assert seen == [batch.tolist() for batch in order.split(8)]
    assert loss == pytest.approx(float(step.loss_sum) / 3)
    assert all(state["step"] == 3 for state in step.optimizer.state.values())


def test_fewer_samples_than_a_batch_make_one_step(whole_step) -> None:
    seen: list[list[int]] = []
    build(whole_step, 5, 8, seen).epoch(torch.arange(5))
    assert seen == [[0, 1, 2, 3, 4]]


def test_restoring_a_snapshot_leaves_no_trace_and_moves_no_tensor(whole_step) -> None:
    """Weights, running means and the moments of a resumed run are restored in place after a warm-up."""
    step = build(whole_step, 16, 8, [])
    step.epoch(torch.arange(16))
    tensors = [*step.model.state_dict().values(), *step._moments().values()]
    values, addresses = [tensor.clone() for tensor in tensors], [tensor.data_ptr() for tensor in tensors]
    snapshot = step._snapshot()
    step.position.zero_()
    step._full_step()
    assert not all(torch.equal(now, then) for now, then in zip(tensors, values, strict=True))
    step._restore(*snapshot)
    assert all(torch.equal(now, then) for now, then in zip(tensors, values, strict=True))
    assert [tensor.data_ptr() for tensor in tensors] == addresses


def test_moments_created_by_the_warm_up_are_reset_to_zero(whole_step) -> None:
    step = build(whole_step, 16, 8, [])
    snapshot = step._snapshot()
    step._full_step()
    step._restore(*snapshot)
    assert step._moments()
    assert not any(moment.any() for moment in step._moments().values())


def test_a_new_learning_rate_applies_to_the_next_step(whole_step) -> None:
    step = build(whole_step, 8, 8, [])
    whole_step.set_learning_rate(step.optimizer, 0.0)
    before = [parameter.clone() for parameter in step.parameters]
    step.epoch(torch.arange(8))
    assert all(torch.equal(old, new) for old, new in zip(before, step.parameters, strict=True))

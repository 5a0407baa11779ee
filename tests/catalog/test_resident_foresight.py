"""The next epoch's order made ahead: the same orders and streams as torch's, whatever is drawn in between."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import hotlap
from hotlap.catalog.resident_data import foresight

DATA = TensorDataset(torch.arange(403.0).reshape(403, 1))
OTHER = TensorDataset(torch.arange(8.0).reshape(8, 1))


@pytest.fixture(autouse=True)
def every_length(monkeypatch):
    monkeypatch.setattr(foresight, "LONG", 1)


def epochs(sampler, between=lambda number: None):
    torch.manual_seed(3)
    loader, valid = DataLoader(DATA, 16, sampler=sampler), DataLoader(OTHER, 4)
    seen = []
    for number in range(6):
        seen += [batch.flatten().tolist() for (batch,) in loader]
        for (batch,) in valid:
            seen.append(batch.flatten().tolist())
        between(number)
        seen.append(torch.get_rng_state().tolist())
    return seen


@pytest.mark.parametrize(
    ("between", "hits"),
    [
        (lambda number: None, 4),
        (lambda number: torch.rand(3), 0),
        (lambda number: torch.rand(3) if number == 3 else None, 2),
        (lambda number: torch.manual_seed(number), 0),
    ],
)
def test_orders_are_torchs_and_foretold_where_they_can_be(between, hits):
    plain = epochs(RandomSampler(DATA), between)
    sampler = RandomSampler(DATA)
    with hotlap.enable(None, with_=["resident-data"]):
        assert epochs(sampler, between) == plain
    assert foresight._known[sampler].hits == hits


def test_a_dataset_of_another_length_gets_an_order_of_its_own():
    known = foresight.Foresight()
    torch.manual_seed(0)
    for length in (50, 50, 50, 60, 60):
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        expected = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(known.order(seed, length), expected)
    assert known.hits == 2


def test_short_epochs_are_drawn_when_they_are_wanted(monkeypatch):
    monkeypatch.setattr(foresight, "LONG", 1000)
    sampler = RandomSampler(DATA)
    assert sorted(foresight.order_of(sampler, 5, 403).tolist()) == list(range(403))
    assert sampler not in foresight._known

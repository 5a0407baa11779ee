"""sample-cache fetches ragged samples once and gives the batches of plain torch."""

from __future__ import annotations

import random
from importlib import import_module

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import hotlap
from hotlap.loading.samples import same
from tests.catalog.resident import rows_asked_for


@pytest.fixture(autouse=True)
def strict(monkeypatch, constants):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    entry = import_module("hotlap.catalog.sample_cache.apply")
    constants(entry, CHEAP_COPY=1e9, WORTH_KEEPING=0.0)
    yield
    hotlap.disable()


def caching(*more):
    return hotlap.enable(None, with_=["sample-cache", *more])


def outcome(enabled, name="sample-cache"):
    (found,) = [found for found in enabled.outcomes if found.name == name]
    return found


class Ragged(Dataset):
    """The samples differ in length and take a while to fetch."""

    def __init__(self, length=12, form=None):
        self.length, self.form, self.shift = length, form, 0

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        values = torch.arange(1 + index % 4).float() + self.shift
        for _ in range(60):
            values = values + torch.zeros(1)
        return self.form(values, index) if self.form else {"x": values, "y": np.full(2, index), "name": str(index)}


def as_lists(batch):
    """Changes and returns the very objects it was given."""
    for sample in batch:
        sample["x"].add_(1)
        sample["y"] += 1
        sample["name"] += "!"
    return batch


def run(data, workers=0, epochs=3):
    torch.manual_seed(0)
    random.seed(0)
    loader = DataLoader(data, 5, shuffle=True, collate_fn=as_lists, num_workers=workers)
    return [(batch, torch.rand(1), random.random()) for _ in range(epochs) for batch in loader]


def test_batches_are_the_same_and_samples_are_fetched_once(monkeypatch):
    plain, fetched = run(Ragged()), rows_asked_for(monkeypatch)
    with caching() as enabled:
        assert same(torch, run(Ragged()), plain)
        assert outcome(enabled).status == "applied"
    assert set(fetched) == set(range(12))
    assert len(fetched) < 2 * 12 + 3 * 4  # over three epochs; some are fetched again and compared


def test_resident_data_takes_precedence():
    flat = Ragged(form=lambda values, index: torch.ones(3) * index)
    with caching("resident-data") as enabled:
        list(DataLoader(flat, 4))
        assert outcome(enabled, "resident-data").status == "applied"
        assert outcome(enabled).status == "no effect"
        assert same(torch, run(Ragged()), run(Ragged()))
        assert outcome(enabled).status == "applied"


@pytest.mark.parametrize(
    ("data", "status", "why"),
    [
        (Ragged(form=lambda values, index: {"x": values + torch.rand(()), "y": 1, "name": ""}), "refused", "random"),
        (Ragged(form=lambda values, index: {"x": values, "y": 1, "name": "", "z": {index}}), "refused", "set"),
        (Ragged(form=lambda values, index: {"x": values, "y": 1, "name": ""}), "no effect", "µs"),
    ],
)  # fmt: skip
def test_refusals_leave_the_random_streams_alone(data, status, why, constants):
    if why == "µs":
        constants(import_module("hotlap.catalog.sample_cache.apply"), WORTH_KEEPING=1e9)
    plain = run(data)
    with caching() as enabled:
        ours = run(data)
        assert outcome(enabled).status == status
        assert why in outcome(enabled).why
    assert [epoch[1:] for epoch in ours] == [epoch[1:] for epoch in plain]


def test_loaders_with_workers_are_left_alone():
    plain = run(Ragged(), workers=1)
    with caching() as enabled:
        assert same(torch, run(Ragged(), workers=1), plain)
        assert "worker" in outcome(enabled).why


def test_gives_up_a_dataset_that_changes():
    def train(data):
        seen = []
        for _ in range(3):
            seen += run(data, epochs=1)
            data.shift += 1
        return seen

    plain = train(Ragged())
    with caching():
        assert same(torch, train(Ragged()), plain)


class RowsOfLargeArray(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.from_numpy(np.sort(np.sqrt(np.abs(self.rows[index])))[: 600 + index % 9])


def test_notices_changes_to_items_with_negative_indices():
    def sums():
        rows = np.ones((1000, 1024), np.float32)
        loader = DataLoader(RowsOfLargeArray(rows), 50, sampler=range(-1, -1001, -1), collate_fn=list)
        for epoch in range(3):
            for step, batch in enumerate(loader):
                yield sum(float(sample.sum()) for sample in batch)
                if (epoch, step) == (1, 5):
                    rows *= 2

    plain = list(sums())
    with caching() as enabled:
        assert list(sums()) == plain
        assert outcome(enabled).status == "applied"


@pytest.mark.parametrize("held", [lambda weight: weight, lambda weight: [weight] * 20], ids=["tensor", "list"])
def test_refuses_items_that_are_part_of_a_computation_only_with_gradients(held):
    weights = held(torch.ones(1, requires_grad=True))
    data = Ragged(form=lambda values, index: values * weights[0])
    with caching() as enabled:
        loader = DataLoader(data, 5, collate_fn=list)
        with torch.no_grad():
            list(loader)
            batches = iter(loader)
        assert all(sample.requires_grad for batch in batches for sample in batch)
        assert "requires a gradient" in outcome(enabled).why


def test_disabling_leaves_nothing_behind(monkeypatch):
    data, rows = Ragged(), rows_asked_for(monkeypatch)
    with caching():
        iterator = iter(DataLoader(data, 5, collate_fn=as_lists))
        next(iterator)
    fetched = len(rows)
    assert sum(len(batch) for batch in iterator) == 7
    assert len(rows) == fetched

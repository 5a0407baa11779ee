"""A dataset of a loader with workers is fetched once, before the first batch or as the workers go."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import hotlap
from hotlap.catalog.resident_data.store import Store
from tests.catalog.resident import check, outcome, resident
from tests.catalog.test_resident_data import FORMS, Made
from tests.catalog.test_resident_ragged import Notes, numbered

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forks on Linux")
caches = import_module("hotlap.catalog.resident_data.caches")


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()


@pytest.fixture
def filled(monkeypatch):
    """Records how many items were fetched before the first batch."""
    done, fill = [], Store.fill

    def noted(store, *args, **kwargs):
        fill(store, *args, **kwargs)
        done.append(store.missing)

    monkeypatch.setattr(Store, "fill", noted)
    return done


class Rows(Dataset):
    def __init__(self, total=23):
        self.values, self.total = torch.arange(2000.0), total

    def __len__(self):
        return self.total

    def __getitem__(self, index):
        return self.values[index]


class Failing(Rows):
    def __getitem__(self, index):
        if index == 21:
            raise KeyError(index)
        return self.values[index]


@pytest.mark.parametrize("form", FORMS)
def test_keeps_every_form_of_sample(form, filled):
    data = Made(FORMS[form])
    check(lambda: DataLoader(data, 4, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(5)), count=1)
    assert filled == [0.0]


def test_works_with_more_workers_than_items(filled):
    data = Made(FORMS["pair"], length=2)
    check(lambda: DataLoader(data, 4, shuffle=True, num_workers=5))
    assert filled == [0.0]


def test_small_parts_of_samples_are_transferred(filled):
    data = Notes()
    check(lambda: DataLoader(data, 4, shuffle=True, collate_fn=numbered, num_workers=2))
    assert filled == [0.0]


def test_a_dataset_error_is_raised_from_its_worker_as_without_hotlap(filled):
    with resident(), pytest.raises(KeyError, match="Caught KeyError in DataLoader worker process"):
        list(DataLoader(Failing(), 4, num_workers=2))


def test_workers_that_are_not_forked_fetch_the_data_themselves(filled, constants):
    constants(caches, EAGER=-1.0)
    with resident() as enabled:
        (batch, *_) = DataLoader(Rows(), 4, num_workers=1, multiprocessing_context="spawn")
        assert batch.tolist() == [0, 1, 2, 3]
        assert "as its workers fetch them" in outcome(enabled).why
    assert filled == []


def test_a_program_that_wants_one_batch_does_not_wait_for_a_slow_dataset(constants, filled):
    constants(caches, AT_FIRST=-1.0)
    with resident() as enabled:
        next(iter(DataLoader(Rows(total=2000), 2, num_workers=2)))
        assert "as its workers fetch them" in outcome(enabled).why
    assert filled == []

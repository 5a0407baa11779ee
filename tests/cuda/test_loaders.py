"""The loader entries on a GPU: pinned batches, data on the device, and workers after CUDA is initialised."""

import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parents[1]))
from catalog.loading import Rows, applied, outcome, shuffled, train

pytestmark = pytest.mark.cuda


def test_batches_of_workers_are_pinned_and_the_same():
    torch.zeros(1, device="cuda")
    alone = train(shuffled(num_workers=2))
    with applied("loader-pinned") as running:
        loader = shuffled(num_workers=2)
        batches = list(loader)
        assert all(tensor.is_pinned() for batch in batches for tensor in batch)
        assert train(loader) == alone
        assert outcome(running)[0] == "applied"
    assert not any(tensor.is_pinned() for batch in loader for tensor in batch)


def test_all_loader_entries_together_train_to_the_same_losses(monkeypatch):
    monkeypatch.setattr("hotlap.catalog.loader_workers.apply.cores_of_a_rank", lambda: 3)
    torch.zeros(1, device="cuda")
    alone = train(shuffled())
    with applied("loader-workers=2", "loader-persistent", "loader-prefetch", "loader-pinned") as running:
        assert train(shuffled()) == alone
        assert [outcome.status for outcome in running.outcomes] == ["applied"] * 4


def test_whole_batch_fetch_of_device_data_is_equal_and_waits_for_nothing():
    inputs = torch.randn(26, 4, device="cuda")
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    torch.manual_seed(0)
    alone = [batch for pair in DataLoader(data, 8, shuffle=True) for batch in pair]
    with applied("whole-batch-fetch") as running:
        torch.manual_seed(0)
        batches = iter(DataLoader(data, 8, shuffle=True))
        under = [*next(batches)]
        torch.cuda.set_sync_debug_mode("error")  # the first batch is compared; after it nothing may wait
        try:
            under += [batch for pair in batches for batch in pair]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert outcome(running)[0] == "applied"
    assert all(torch.equal(a, b) for a, b in zip(alone, under, strict=True))


def test_an_index_outside_device_data_still_raises():
    data = TensorDataset(torch.zeros(4, 2, device="cuda"))
    with applied("whole-batch-fetch"):
        batches = iter(DataLoader(data, batch_sampler=[[0, 1], [9]]))
        next(batches)
        with pytest.raises(IndexError):
            next(batches)
    assert torch.ones(2, device="cuda").sum().item() == 2.0, "the device still works"


def test_data_made_on_the_device_gets_no_workers(monkeypatch):
    class OnDevice(Rows):
        def __getitem__(self, index):
            return tuple(tensor.cuda() for tensor in super().__getitem__(index))

    monkeypatch.setattr("hotlap.catalog.loader_workers.apply.cores_of_a_rank", lambda: 4)
    torch.zeros(1, device="cuda")
    with applied("loader-workers=2") as running:
        assert shuffled(OnDevice()).num_workers == 0
        assert outcome(running)[0] == "refused"

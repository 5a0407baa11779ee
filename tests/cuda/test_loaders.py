"""The loader entries on a GPU: pinned batches, data on the device, and workers after CUDA is initialised."""

import subprocess
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


CHANGED_DATA = """
import gc, torch
from torch.utils.data import DataLoader, Dataset

class Listed(Dataset):
    def __init__(self):
        self.rows = [torch.full((64, 64), float(index)) for index in range(24)]
    def __getitem__(self, index):
        return self.rows[index % 24] * 2, float(len(self.rows))
    def __len__(self):
        return 24

gc.set_threshold(10)
torch.manual_seed(0)
data = Listed()
model = torch.nn.Linear(64, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
loader = DataLoader(data, 4, num_workers=2)
for epoch in range(6):
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        loss = (model(x).mean((1, 2)) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item(), flush=True)
    if epoch == 3:
        data.rows.append(torch.zeros(64, 64))
"""


def test_workers_that_start_once_cached_data_has_changed_end_in_no_error(tmp_path):
    """What was cached on the device lies in the frames of the exception that said so; no worker may free it."""
    (tmp_path / "train.py").write_text(CHANGED_DATA)
    plain, ours = (
        subprocess.run([*words, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        for words in (
            [sys.executable],
            [sys.executable, "-m", "hotlap", "run", "--at-once", "--quiet", sys.executable],
        )
    )
    assert (ours.stdout, ours.returncode) == (plain.stdout, 0), ours.stderr

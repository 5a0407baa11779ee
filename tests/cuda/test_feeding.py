"""resident-data, device-prefetch and pinned-copies on a GPU: the numbers of the bare run, and nothing waits."""

import sys
from pathlib import Path

import pytest
import torch
from harness import HOTLAP, bare
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hotlap

pytestmark = pytest.mark.cuda
PROGRAM = Path(__file__).parent / "program.py"
ENTRIES = ["resident-data", "resident-data=device", "resident-data=host", "device-prefetch", "pinned-copies"]


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    torch.cuda.set_sync_debug_mode("default")
    hotlap.disable()


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("options", [("--fault", "none"), ("--fault", "pinned", "--workers", "2")])
def test_whole_programs_train_the_same(entry, options, tmp_path):
    command = [sys.executable, str(PROGRAM), *options, "--steps", "120"]
    alone = bare(command, tmp_path)
    ran = bare([*HOTLAP, "run", "--with", entry, "--run-dir", str(tmp_path / "kept"), *command], tmp_path)
    assert ran.code == alone.code == 0, ran.stderr
    assert ran.stdout == alone.stdout
    if entry != "pinned-copies" or "none" in options:
        assert f"applied: {entry.partition('=')[0]}" in ran.stderr


def test_all_entries_together_change_no_output(tmp_path):
    command = [sys.executable, str(PROGRAM), "--steps", "120"]
    alone = bare(command, tmp_path)
    chosen = [word for entry in ("resident-data", "device-prefetch", "pinned-copies") for word in ("--with", entry)]
    ran = bare([*HOTLAP, "run", *chosen, "--run-dir", str(tmp_path / "kept"), *command], tmp_path)
    assert ran.code == 0, ran.stderr
    assert ran.stdout == alone.stdout


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("workers", [0, 2])
def test_values_are_right_and_nothing_waits_for_the_device(entry, workers):
    torch.zeros(1, device="cuda")
    values = torch.randn(4000, 16)
    with hotlap.enable(None, with_=[entry]) as enabled:
        loader = DataLoader(TensorDataset(values, torch.arange(4000)), 100, shuffle=True, num_workers=workers)
        batches = []
        for epoch in range(3):
            if epoch and (entry != "resident-data=host"):
                torch.cuda.set_sync_debug_mode("error")
            for inputs, rows in loader:
                inputs, rows = inputs.to("cuda"), rows.to("cuda")
                torch.cuda._sleep(100_000)  # the device is behind, so that a missing wait would show
                batches.append((inputs * 1, rows * 1))
            torch.cuda.set_sync_debug_mode("default")
        assert enabled.outcomes[0].status == "applied"
    for inputs, rows in batches:
        assert torch.equal(inputs.cpu(), values[rows.cpu()])


class Doubled(Dataset):
    def __init__(self):
        self.values = torch.randn(400, 8)

    def __len__(self):
        return 400

    def __getitem__(self, index):
        return self.values[index] * 2, index


def test_a_dataset_of_workers_is_resident_even_after_graphs_exist():
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).cuda()
    optim = torch.optim.SGD(net.parameters(), lr=0.1)
    train, valid = Doubled(), Doubled()
    with hotlap.enable(None, with_=["cuda-graphs", "resident-data"]) as enabled:
        other = DataLoader(valid, 50, num_workers=3)
        for _ in range(3):
            for inputs, _ in DataLoader(train, 16):
                optim.zero_grad()
                net(inputs.cuda()).square().mean().backward()
                optim.step()
            for inputs, rows in other:
                assert torch.equal(inputs.cuda().cpu(), valid.values[rows] * 2)
        assert {outcome.name: outcome.status for outcome in enabled.outcomes} == dict.fromkeys(
            ("cuda-graphs", "resident-data"), "applied"
        )


def test_labels_read_on_the_host_stay_there():
    torch.zeros(1, device="cuda")
    data = TensorDataset(torch.randn(400, 4), torch.arange(400))
    for entry in ("resident-data", "device-prefetch"):
        with hotlap.enable(None, with_=[entry]):
            for _ in range(3):
                for inputs, labels in DataLoader(data, 20):
                    assert labels.numpy().shape == (20,)
                    inputs = inputs.to("cuda")


def test_resident_batches_are_on_the_device():
    torch.zeros(1, device="cuda")
    loader = DataLoader(TensorDataset(torch.randn(400, 4)), 20)
    with hotlap.enable(None, with_=["resident-data"]) as enabled:
        for (inputs,) in loader:
            moved = inputs.to("cuda")
            del inputs
        (inputs,) = next(iter(loader))
        assert inputs.is_cuda
        assert inputs.to("cuda") is inputs
        assert moved.is_cuda
        assert "on cuda" in enabled.outcomes[0].why


def test_writes_to_a_batch_after_its_copy_do_not_reach_the_device():
    with hotlap.enable(None, with_=["pinned-copies"]):
        for (inputs,) in DataLoader(TensorDataset(torch.ones(64, 1 << 16)), 16):
            torch.cuda._sleep(10_000_000)
            there = inputs.to("cuda")
            inputs.zero_()
            assert there.eq(1).all()


class Labelled(torch.utils.data.Dataset):
    """Pictures, each with a different number of labels."""

    def __init__(self):
        self.images = torch.rand(200, 3, 40, 40, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index].clone(), torch.full((index % 4, 2), float(index))


def numbered(batch):
    labels = [torch.cat((torch.full((len(rows), 1), float(n)), rows), 1) for n, (_, rows) in enumerate(batch)]
    return torch.stack([image for image, _ in batch]), torch.cat(labels)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pin", [False, True])
def test_pictures_with_ragged_labels_can_be_resident(workers, pin):
    torch.zeros(1, device="cuda")

    def epochs():
        torch.manual_seed(0)
        loader = DataLoader(Labelled(), 8, shuffle=True, collate_fn=numbered, num_workers=workers, pin_memory=pin)
        places = []
        for _ in range(2):
            for images, labels in loader:
                places.append((images.to("cuda").sum(), labels.to("cuda").cpu(), type(labels), labels.is_pinned()))
                del images, labels
        return places

    plain = epochs()
    with hotlap.enable(None, with_=["resident-data"]) as enabled:
        ours = epochs()
        (outcome,) = [outcome for outcome in enabled.outcomes if outcome.name == "resident-data"]
    assert "1 of 1 tensors per batch" in outcome.why
    for (images, labels, kind, pinned), (own_images, own_labels, own_kind, own_pinned) in zip(plain, ours, strict=True):
        assert torch.equal(images, own_images)
        assert torch.equal(labels, own_labels)
        assert (kind, pinned) == (own_kind, own_pinned)

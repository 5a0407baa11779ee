"""Where a collate_fn numbers samples or joins labels, the large tensors stay in memory and the rest is collated."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import hotlap
from hotlap.catalog.resident_data.apply import Keeper
from hotlap.catalog.resident_data.caches import Caches
from hotlap.catalog.resident_data.device_leaves import SETTLED, DeviceLeaves
from tests.catalog.resident import check, outcome, resident, rows_asked_for


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()


class Notes(Dataset):
    """The dataset has pictures with zero to three labels each."""

    def __init__(self, length=21, dtype=torch.float32):
        self.images = torch.rand(length, 3, 40, 40, generator=torch.Generator().manual_seed(3)).mul(9).to(dtype)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        labels = torch.arange(5.0).repeat(index % 4, 1) + index
        return self.images[index].clone(), labels


def numbered(batch):
    notes = [torch.cat((torch.tensor([float(n)]), label)) for n, (_, labels) in enumerate(batch) for label in labels]
    return torch.stack([image for image, _ in batch]), torch.stack(notes) if notes else torch.zeros(0, 6)


def written_into(batch):
    """Writes the sample's number into its labels, as detectors do."""
    for number, (_, labels) in enumerate(batch):
        labels[:, 0] = number
    return {"x": torch.stack([x for x, _ in batch]), "y": torch.cat([y for _, y in batch]), "n": len(batch)}


def lists(batch):
    return torch.stack([x for x, _ in batch]), [y for _, y in batch], [y.numpy() for _, y in batch]


def channels_last(batch):
    return torch.stack([x for x, _ in batch]).contiguous(memory_format=torch.channels_last), len(batch)


def scaled(batch):
    return torch.stack([x for x, _ in batch]).float() / 255.0, [len(y) for _, y in batch]


@pytest.mark.parametrize("collate", [numbered, written_into, lists])
def test_batches_equal_those_of_plain_torch(collate):
    data = Notes()
    check(lambda: DataLoader(data, 4, shuffle=True, collate_fn=collate))


def test_each_item_is_fetched_once_and_no_worker_is_started(monkeypatch):
    data, fetched = Notes(), rows_asked_for(monkeypatch)
    with resident() as enabled:
        for _ in range(3):
            list(DataLoader(data, 4, shuffle=True, collate_fn=numbered, num_workers=2))
        assert outcome(enabled).status == "applied"
    assert set(fetched) == set(range(21))  # in this process: fetches in a worker are not counted here
    assert len(fetched) < 2 * 21


@dataclass
class Batch:
    images: torch.Tensor
    count: int


def normalised(batch):
    images = torch.stack([x for x, _ in batch])
    return images - images.mean(), len(batch)


def thresholded(batch):
    return torch.stack([x for x, _ in batch if x.mean() > 0]), len(batch)


def unstacked(batch):
    return tuple(zip(*batch, strict=True))


def in_an_object(batch):
    return Batch(torch.stack([x for x, _ in batch]), len(batch))


def noisy(batch):
    return torch.stack([x for x, _ in batch]), [y + torch.rand(()) for _, y in batch]


def by_numpy(batch):
    return torch.from_numpy(np.stack([x.numpy() for x, _ in batch])), len(batch)


@pytest.mark.parametrize("collate", [normalised, thresholded, unstacked, noisy, by_numpy, channels_last, scaled])
def test_refuses_collating_that_depends_on_values_or_is_not_a_stack(collate):
    data = Notes()
    check(lambda: DataLoader(data, 4, shuffle=True, collate_fn=collate), status="refused")


def test_refuses_a_custom_batch_type():
    with resident() as enabled:
        (first, *_) = DataLoader(Notes(), 4, collate_fn=in_an_object)
        assert outcome(enabled).status == "refused"
    assert torch.equal(first.images, Notes().images[:4])


def test_finds_a_late_item_of_another_shape(monkeypatch):
    class Odd(Notes):
        def __getitem__(self, index):
            image, labels = super().__getitem__(index)
            return (image[:, :20] if index == 300 else image), labels

    data = Odd(400)
    plain = [len(labels) for _, labels in DataLoader(data, 1, collate_fn=numbered)]
    with resident() as enabled:
        assert [len(labels) for _, labels in DataLoader(data, 1, collate_fn=numbered)] == plain
        assert "differ in shape" in outcome(enabled).why


def test_labels_that_change_between_epochs_disable_it(monkeypatch):
    class Changing(Notes):
        shift = 0.0

        def __getitem__(self, index):
            image, labels = super().__getitem__(index)
            return image, labels + self.shift

    data = Changing(4)  # few enough that a changed item is among those looked at again
    loader = DataLoader(data, 4, collate_fn=numbered)
    with resident() as enabled:
        list(loader)
        data.shift = 1.0
        (changed,) = list(loader)
        assert "has changed" in outcome(enabled).why
    assert torch.equal(changed[1], numbered([data[i] for i in range(4)])[1])


def test_small_parts_count_when_memory_is_short(answering):
    class Clouds(Notes):
        def __getitem__(self, index):
            return super().__getitem__(index)[0], torch.zeros(50_000 + index, 5)  # a megabyte, and no two alike

    storing = sys.modules["hotlap.catalog.resident_data.store"]
    answering(storing, host_memory=5e6)  # the pictures alone would fit
    with resident() as enabled:
        list(DataLoader(Clouds(), 4, collate_fn=lists))
        assert "of memory may be used" in outcome(enabled).why


def test_slow_datasets_are_kept_as_workers_fetch_them(constants):
    caches = sys.modules["hotlap.catalog.resident_data.caches"]
    constants(caches, EAGER=0.0)
    data = Notes()
    plain = [[part.clone() for part in batch] for batch in DataLoader(data, 4, collate_fn=numbered)]
    with resident() as enabled:
        loader = DataLoader(data, 4, collate_fn=numbered, num_workers=1)
        for _ in range(3):
            for ours, theirs in zip(loader, plain, strict=True):
                assert all(torch.equal(tensor, expected) for tensor, expected in zip(ours, theirs, strict=True))
        assert outcome(enabled).status == "applied"
        assert "in host memory" in outcome(enabled).why


def test_images_move_to_the_device_while_labels_stay(monkeypatch, answering):
    applying = sys.modules["hotlap.catalog.resident_data.apply"]
    monkeypatch.setattr(applying, "new_learning", lambda: DeviceLeaves(frozenset({"meta"})))
    answering(Keeper, on_a_device=True)
    answering(Caches, device_memory=1e9)
    where = []
    with resident() as enabled:
        for images, labels in DataLoader(Notes(60), 4, collate_fn=numbered):
            if len(where) > SETTLED:
                where.append((images.device.type, labels.device.type))
            else:
                where.append(images.to("meta") is images)
            del images, labels
        assert "1 of 1 tensors" in outcome(enabled).why
    assert where[-1] == ("meta", "cpu")

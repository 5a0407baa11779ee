"""How many samples a batch holds, what a DataLoader is like, and which one feeds the training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from hotlap.observe.loaders import EVALUATION, TRAIN, UNKNOWN, Loaders, batch_size_of


class Encoding(dict):
    """Like transformers' BatchEncoding."""


class Fields:
    """A mapping that is no dict, like tensordict's."""

    def keys(self):
        return ["x"]

    def values(self):
        return [torch.zeros(9, 2)]


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(8, 3, 32, 32), 8),
        ([torch.zeros(8, 3), torch.zeros(8)], 8),
        ((torch.zeros(8, 3), torch.zeros(8)), 8),
        ({"image": torch.zeros(8, 3), "label": torch.zeros(8)}, 8),
        (Encoding(input_ids=torch.zeros(4, 128), attention_mask=torch.zeros(4, 128)), 4),
        (Fields(), 9),
        (np.zeros((5, 2)), 5),
        ([np.zeros((5, 2)), ["a"] * 5], 5),
        ({"x": {"deep": [torch.zeros(6, 1)]}}, 6),
        ([torch.zeros(16, 3), torch.zeros(100, 2), torch.zeros(16)], 16),
        ([torch.zeros(()), torch.zeros(7, 2)], 7),
        (["a", "b", "c"], 3),
        ((), 0),
        (None, 1),
        (3.5, 1),
        (torch.zeros(()), 1),
    ],
)
def test_how_many_samples_a_batch_holds(batch, size):
    assert batch_size_of(batch) == size


def test_a_batch_nested_in_itself_does_not_hang():
    batch: list[object] = [torch.zeros(3)]
    batch.append(batch)
    assert batch_size_of(batch) == 3


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor(float(index))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(5))


def seen(loader, fetch: int = 0):
    loaders = Loaders()
    iterator = iter(loader)
    loaders.iterated(loader, iterator)
    for _ in range(fetch):
        loaders.fetched(iterator, next(iterator))
    return loaders.seen[0]


def test_a_loader_is_described_as_it_was_made():
    record = seen(DataLoader(Numbers(), batch_size=4, shuffle=True, drop_last=True), fetch=2).record()
    assert (record.dataset, record.dataset_kind, record.length) == ("Numbers", "map", 10)
    assert (record.batch_size, record.drop_last, record.sampler) == (4, True, "RandomSampler")
    assert (record.workers, record.prefetch, record.pin_memory, record.persistent_workers) == (0, None, False, False)
    assert record.batches == 2
    assert record.dataset_place is not None
    assert record.dataset_place.file == __file__
    assert record.dataset_place.function.endswith("Numbers.__getitem__")


def test_a_stream_has_no_length_and_no_sampler():
    record = seen(DataLoader(Stream(), batch_size=2)).record()
    assert (record.dataset_kind, record.length, record.sampler) == ("iterable", None, "none")
    assert record.dataset_place is not None
    assert record.dataset_place.function.endswith("Stream.__iter__")


def test_a_subset_is_blamed_on_the_dataset_below():
    record = seen(DataLoader(Subset(Numbers(), range(5)), batch_size=2)).record()
    assert record.length == 5
    assert record.dataset_place is not None
    assert record.dataset_place.function.endswith("Numbers.__getitem__")


def test_batches_of_a_batch_sampler_have_its_size():
    sampler = torch.utils.data.BatchSampler(range(10), batch_size=5, drop_last=False)
    assert seen(DataLoader(Numbers(), batch_sampler=sampler)).record().batch_size == 5


def test_what_was_fetched_before_an_optimizer_step_feeds_the_training():
    loaders = Loaders()
    train, other = (DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2) for _ in range(2))
    first, second = iter(train), iter(other)
    loaders.iterated(train, first)
    loaders.iterated(other, second)
    loaders.fetched(first, next(first))
    loaders.stepped()
    assert loaders.role_of_loader(train) == TRAIN
    assert loaders.role_of_loader(other) == UNKNOWN


def test_what_was_fetched_for_a_model_in_evaluation_does_not():
    loaders = Loaders()
    train, check = (DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2) for _ in range(2))
    first, second = iter(train), iter(check)
    loaders.iterated(train, first)
    loaders.iterated(check, second)
    loaders.fetched(second, next(second))
    loaders.evaluated()
    loaders.fetched(first, next(first))
    loaders.stepped()
    assert loaders.role_of_loader(check) == EVALUATION
    assert loaders.role_of_loader(train) == TRAIN


def test_a_training_loader_used_for_evaluation_as_well_stays_one():
    loaders = Loaders()
    train = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2)
    iterator = iter(train)
    loaders.iterated(train, iterator)
    loaders.fetched(iterator, next(iterator))
    loaders.stepped()
    loaders.fetched(iterator, next(iterator))
    loaders.evaluated()
    assert loaders.role_of_loader(train) == TRAIN


def test_each_epoch_of_a_loader_counts_on_the_same_one():
    loaders = Loaders()
    train = DataLoader(TensorDataset(torch.arange(5.0)), batch_size=2)
    for _ in range(3):
        iterator = iter(train)
        loaders.iterated(train, iterator)
        for batch in iterator:
            loaders.fetched(iterator, batch)
        loaders.fetched(iterator, None)  # the end of an epoch yields nothing
    (one,) = loaders.seen
    assert (one.batches, one.samples) == (9, 15)
    assert loaders.counts() == {one: (9, 15)}


def test_an_iterator_nobody_announced_is_not_counted():
    loaders = Loaders()
    iterator = iter(DataLoader(Numbers()))
    loaders.fetched(iterator, next(iterator))
    assert loaders.seen == []

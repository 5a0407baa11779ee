"""Batches are counted in samples, DataLoaders are described, and the training loader is found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from hotlap.observe.loaders import EVALUATION, TRAIN, UNKNOWN, Loaders, batch_size_of, called_with


class Encoding(dict):
    """Stands for the BatchEncoding of transformers."""


class Fields:
    """A mapping that is not a dict, like that of tensordict."""

    def keys(self):
        return ["x"]

    def values(self):
        return [torch.zeros(9, 2)]


class Graphs:
    """Has 4 graphs of 50 nodes together."""

    __module__ = "torch_geometric.data.batch"
    num_graphs = 4

    def keys(self):
        return ["x"]

    def values(self):
        return [torch.zeros(50, 2)]


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(8, 3, 32, 32), 8),
        ([torch.zeros(8, 3), torch.zeros(8)], 8),
        ((torch.zeros(8, 3), torch.zeros(8)), 8),
        ({"image": torch.zeros(8, 3), "label": torch.zeros(8)}, 8),
        (Encoding(input_ids=torch.zeros(4, 128), attention_mask=torch.zeros(4, 128)), 4),
        (Fields(), 9),
        (Graphs(), 4),
        ((Graphs(), torch.zeros(50)), 4),
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
def test_the_number_of_samples_in_a_batch_is_found(batch, size):
    assert batch_size_of(batch) == size


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ([torch.zeros(8, 3), torch.zeros(8)], 8),
        ([torch.zeros(8, 5, dtype=torch.int64), None], 8),
        ([torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 5, dtype=torch.int64)], 2),
        ([torch.zeros(50, 3), torch.zeros(2, 400, dtype=torch.int64)], 0),
        ([torch.zeros(50, 3), torch.eye(50).to_sparse()], 0),
        ([torch.zeros(50, 3), torch.eye(50).to_sparse_csr()], 0),
    ],
)
def test_the_arguments_of_a_model_show_the_samples_except_those_of_a_graph(arguments, size):
    assert called_with(arguments) == size


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


def numbers(count: int, **options) -> DataLoader:
    return DataLoader(TensorDataset(torch.arange(float(count))), **{"batch_size": 2, **options})


class Reading:
    """A loader being read, with the events that the tape records."""

    def __init__(self, loaders: Loaders, loader: DataLoader) -> None:
        self._loaders, self._loader = loaders, loader
        self.seen = loaders.of_loader(loader)
        self.begin()

    @property
    def iterator(self) -> int:
        return id(self._iterator)

    def begin(self) -> None:
        self._iterator = iter(self._loader)
        self._loaders.iterated(self.seen, id(self._iterator), torch.is_grad_enabled())

    def fetch(self, batches: int = 1) -> None:
        for _ in range(batches):
            self._loaders.fetched(id(self._iterator), batch_size_of(next(self._iterator)))

    def fetch_unseen(self) -> None:
        """Fetch a batch that is not inspected, or reach the end."""
        self._loaders.requested(id(self._iterator))
        next(self._iterator, None)
        self._loaders.fetched_as_expected()

    def epoch(self) -> None:
        self.begin()
        for batch in self._iterator:
            self._loaders.fetched(id(self._iterator), batch_size_of(batch))
        self._loaders.fetched(id(self._iterator), None)  # the end of an epoch yields nothing


def seen(loader, fetch: int = 0):
    reading = Reading(Loaders(), loader)
    reading.fetch(fetch)
    return reading.seen


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


def test_a_loader_fetched_before_an_optimizer_step_is_the_training_loader():
    loaders = Loaders()
    train, other = Reading(loaders, numbers(4)), Reading(loaders, numbers(4))
    train.fetch()
    loaders.stepped()
    assert train.seen.role == TRAIN
    assert other.seen.role == UNKNOWN


def test_a_loader_fetched_for_a_model_in_evaluation_is_not_the_training_loader():
    loaders = Loaders()
    train, check = Reading(loaders, numbers(4)), Reading(loaders, numbers(4))
    check.fetch()
    loaders.evaluated()
    train.fetch()
    loaders.stepped()
    assert check.seen.role == EVALUATION
    assert train.seen.role == TRAIN


def test_a_pass_without_gradients_before_the_first_step_is_not_training():
    """As in Lightning's sanity check, which evaluates before anybody knows which module is trained."""
    loaders = Loaders()
    train, check = Reading(loaders, numbers(4)), Reading(loaders, numbers(4))
    with torch.no_grad():
        check.begin()
    check.fetch()
    train.fetch()
    loaders.stepped()
    assert check.seen.role == UNKNOWN
    assert train.seen.role == TRAIN
    check.begin()
    check.fetch()
    loaders.stepped()
    assert check.seen.role == TRAIN, "it can still turn out to train"


def test_a_training_loader_that_also_serves_evaluation_stays_a_training_loader():
    loaders = Loaders()
    train = Reading(loaders, numbers(4))
    train.fetch()
    loaders.stepped()
    train.fetch()
    loaders.evaluated()
    assert train.seen.role == TRAIN


def test_every_epoch_counts_towards_the_same_loader():
    loaders = Loaders()
    reading = Reading(loaders, numbers(5))
    for _ in range(3):
        reading.epoch()
    (counted,) = loaders.seen
    assert (counted.batches, counted.samples) == (9, 15)
    assert loaders.counts() == {counted: (9, 15)}


def test_an_unknown_iterator_is_not_counted():
    loaders = Loaders()
    loaders.fetched(12345, 4)
    loaders.requested(12345)
    loaders.fetched_as_expected()
    assert loaders.seen == []
    assert loaders.role_of(12345) == UNKNOWN


@pytest.mark.parametrize(("drop_last", "batches", "samples"), [(False, 3, 5), (True, 2, 4)])
def test_batches_that_are_not_inspected_are_counted_as_the_sampler_predicts(drop_last, batches, samples):
    loaders = Loaders()
    reading = Reading(loaders, numbers(5, drop_last=drop_last))
    for epoch in (1, 2):
        for _ in range(batches + 1):  # one more: the end of the epoch
            reading.fetch_unseen()
        assert (reading.seen.batches, reading.seen.samples) == (epoch * batches, epoch * samples)
        reading.begin()


@pytest.mark.parametrize(("drop_last", "batches", "samples"), [(False, 3, 5), (True, 2, 4)])
def test_a_loader_read_twice_at_once_is_predicted_for_each_reading(drop_last, batches, samples):
    """This happens in zip(loader, loader)."""
    loaders, loader = Loaders(), numbers(5, drop_last=drop_last)
    pair = [Reading(loaders, loader), Reading(loaders, loader)]
    for _ in range(batches + 1):
        for reading in pair:
            reading.fetch_unseen()
    (counted,) = loaders.seen
    assert (counted.batches, counted.samples) == (2 * batches, 2 * samples)


def test_a_loader_read_twice_at_once_is_still_predictable():
    loaders, loader = Loaders(), numbers(5)
    pair = [Reading(loaders, loader), Reading(loaders, loader)]
    for _ in range(3):
        for reading in pair:
            reading.fetch()
    assert loaders.predictable()


def test_a_batch_that_is_not_inspected_counts_for_its_own_loader_when_its_dataset_reads_another():
    loaders = Loaders()
    outer, inner = Reading(loaders, numbers(6)), Reading(loaders, numbers(9, batch_size=3))
    loaders.requested(outer.iterator)
    inner.fetch_unseen()
    loaders.fetched_as_expected()
    assert (outer.seen.batches, outer.seen.samples) == (1, 2)
    assert (inner.seen.batches, inner.seen.samples) == (1, 3)


def test_what_a_plain_sampler_says_is_counted_whatever_a_batch_looks_like():
    """Collated texts lead with their words, graphs with their nodes."""
    loaders = Loaders()
    assert not loaders.predictable(), "none was seen"
    reading = Reading(loaders, numbers(5, collate_fn=lambda batch: torch.zeros(35, len(batch))))
    reading.epoch()
    assert reading.seen.samples == 5
    assert loaders.predictable()


def test_a_loader_that_yields_more_than_its_sampler_says_is_not_predictable():
    class Longer(torch.utils.data.SequentialSampler):
        def __iter__(self):
            return iter([0, 1, 2, 3])

        def __len__(self):
            return 2

    loaders = Loaders()
    Reading(loaders, numbers(4, sampler=Longer([]))).fetch(2)
    assert not loaders.predictable()


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Stream(), batch_size=2),
        DataLoader(Numbers(), batch_size=None),
        DataLoader(Numbers(), batch_sampler=[[0, 1, 2], [3]]),
    ],
    ids=["stream", "no batches", "batches of any size"],
)
def test_nothing_is_predicted_without_a_sampler_of_known_size(loader):
    assert not seen(loader).predictable

"""For the ceiling, the same program reads one cached batch forever."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hotlap.observe.feed import feed_one_batch
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams


@pytest.fixture
def seams():
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    feed_one_batch(seams)
    yield seams
    seams.close()


def test_every_batch_is_the_first_and_an_epoch_keeps_its_length(seams):
    loader = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2)
    for _ in range(2):
        batches = [batch[0] for batch in loader]
        assert len(batches) == len(loader) == 3
        assert all(batch is batches[0] for batch in batches)
        assert batches[0].tolist() == [0.0, 1.0]


def test_the_dataset_is_read_once(seams):
    class Counting(torch.utils.data.Dataset):
        read = 0

        def __len__(self):
            return 8

        def __getitem__(self, index):
            Counting.read += 1
            return index

    loader = DataLoader(Counting(), batch_size=2)
    for _ in range(5):
        assert len(list(loader)) == 4
    assert Counting.read == 2


def test_a_stream_without_a_length_never_ends(seams):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(4))

    iterator = iter(DataLoader(Stream(), batch_size=2))
    assert [next(iterator).tolist() for _ in range(10)] == [[0, 1]] * 10
    with pytest.raises(TypeError):
        len(iterator)


def test_an_empty_loader_stays_empty(seams):
    assert list(DataLoader(TensorDataset(torch.zeros(0)), batch_size=2)) == []


def test_the_length_of_an_iterator_does_not_change_while_it_is_read(seams):
    iterator = iter(DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2))
    assert len(iterator) == 3
    next(iterator)
    assert len(iterator) == 3


def test_fetches_raise_the_same_events_as_a_real_loader(seams):
    events = []
    seams.fetching.subscribe(
        before=lambda iterator, args, kwargs: events.append("asked"),
        after=lambda iterator, args, kwargs, batch: events.append("end" if batch is None else "got"),
    )
    list(DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2))
    assert events[-6:] == ["asked", "got", "asked", "got", "asked", "end"]


def test_two_loaders_keep_their_own_batches(seams):
    low, high = (DataLoader(TensorDataset(torch.arange(4.0) + start), batch_size=2) for start in (0, 100))
    assert [batch[0].tolist() for batch in low] == [[0.0, 1.0]] * 2
    assert [batch[0].tolist() for batch in high] == [[100.0, 101.0]] * 2
    assert [batch[0].tolist() for batch in low] == [[0.0, 1.0]] * 2


def test_a_loader_with_workers_ends_them(seams):
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=1)
    iterator = iter(loader)
    assert [batch[0].tolist() for batch in iterator] == [[0.0, 1.0]] * 4
    assert not torch.multiprocessing.active_children()


def test_an_error_in_the_users_dataset_reaches_the_user(seams):
    class Failing(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        iter(DataLoader(Failing()))


def test_closing_the_seams_restores_the_real_batches():
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    feed_one_batch(seams)
    seams.close()
    loader = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2)
    assert [batch[0].tolist() for batch in loader] == [[0.0, 1.0], [2.0, 3.0]]

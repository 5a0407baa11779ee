"""whole-batch-fetch gives identical batches, losses and random numbers, and applies only where that is certain."""

import functools
import sys

import numpy as np
import pytest
import torch
from catalog.loading import applied, outcome, train
from observations import loader, observation
from torch.utils.data import BatchSampler, DataLoader, Dataset, Subset, TensorDataset, default_collate, random_split

from hotlap.catalog import entries
from hotlap.catalog.whole_batch_fetch.source import shape_of

NAME = "whole-batch-fetch"
INPUTS = torch.randn(26, 4, generator=torch.Generator().manual_seed(5))
TARGETS = INPUTS.sum(1, keepdim=True)


class Pairs(Dataset):
    def __init__(self):
        self.inputs, self.targets = INPUTS, TARGETS
        self.asked = 0

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        """Returns a row of each tensor."""
        return self.inputs[index], self.targets[index]


class Named(Pairs):
    def __getitem__(self, index):
        return {"inputs": self.inputs[index], "pair": [self.inputs[index], self.targets[index]]}


class Single(Pairs):
    def __getitem__(self, index):
        return self.inputs[index]


class Shifted(Pairs):
    def __getitem__(self, index):
        return self.inputs[index] + 1, self.targets[index]


class Neighbours(Pairs):
    def __getitem__(self, index):
        return self.inputs[index - 1], self.targets[index]


class Whole(Pairs):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


FITTING = {
    "tensors": lambda: TensorDataset(INPUTS, TARGETS),
    "written alike": Pairs,
    "subset": lambda: Subset(TensorDataset(INPUTS, TARGETS), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]),
    "subset of a subset": lambda: Subset(Subset(Pairs(), range(5, 25)), np.arange(3, 15)),
    "split": lambda: random_split(Pairs(), [20, 6], torch.Generator().manual_seed(0))[0],
}


@pytest.mark.parametrize("dataset", FITTING.values(), ids=FITTING)
@pytest.mark.parametrize("options", [{"shuffle": True}, {"drop_last": True}], ids=str)
def test_losses_and_random_numbers_are_the_same(dataset, options):
    alone = train(DataLoader(dataset(), 8, **options))
    with applied(NAME) as running:
        assert train(DataLoader(dataset(), 8, **options)) == alone
        assert outcome(running)[0] == "applied"


@pytest.mark.parametrize("dataset", [Named, Single])
def test_batches_have_the_shapes_that_collating_gives(dataset):
    alone = list(DataLoader(dataset(), 5))
    with applied(NAME) as running:
        ours = list(DataLoader(dataset(), 5))
        assert outcome(running)[0] == "applied"
    assert str(ours) == str(alone)


def test_does_not_fetch_items_one_by_one():
    dataset = TensorDataset(INPUTS, TARGETS)
    with applied(NAME):
        batches = iter(DataLoader(dataset, 5))
        next(batches)
        batches._dataset_fetcher._spent = 1e9  # no time is left to also fetch a batch the program's own way
        batches._dataset_fetcher._original = None  # nor is the original fetcher called
        assert len(list(batches)) == 5


def test_items_are_fetched_one_by_one_while_calls_are_traced():
    calls = []
    with applied(NAME):
        batches = iter(DataLoader(TensorDataset(INPUTS, TARGETS), 5))
        next(batches)
        sys.setprofile(lambda frame, event, _: event == "call" and calls.append(frame.f_code))
        try:
            next(batches)
        finally:
            sys.setprofile(None)
    assert calls.count(TensorDataset.__getitem__.__code__) == 5


def test_calls_a_torch_method_that_the_program_has_replaced(spied):
    with applied(NAME):
        batches = iter(DataLoader(TensorDataset(INPUTS, TARGETS), 5))
        next(batches)
        calls = spied(TensorDataset, "__getitem__")
        assert len(list(batches)) == 5
    assert len(calls) == len(INPUTS) - 5


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DataLoader(Shifted(), 4), "not known to be rows"),
        (lambda: DataLoader(Neighbours(), 4), "not known to be rows"),
        (lambda: DataLoader(Whole(), 4), "in whole batches"),
        (
            lambda: DataLoader(Pairs(), 4, collate_fn=lambda rows: default_collate(rows)),
            "made by a custom collate_fn",
        ),
        (lambda: DataLoader(Pairs(), 4, num_workers=1), "by workers"),
        (lambda: DataLoader(Pairs(), batch_size=None), "not made from items"),
        (lambda: DataLoader(list(INPUTS), 4), "not known to be rows"),
        (lambda: DataLoader(TensorDataset(INPUTS.clone().requires_grad_()), 4), "with gradients"),
        (lambda: DataLoader(TensorDataset(torch.nn.Parameter(INPUTS)), 4), "of Parameter"),
    ],
)
def test_does_nothing_and_says_why_where_it_does_not_apply(make, said):
    alone = list(make())
    with applied(NAME) as running:
        ours = list(make())
        status, why = outcome(running)
    assert (status, said in why) == ("no effect", True), why
    assert str(ours) == str(alone)


def test_unusual_memory_layouts_are_left_to_the_collate_function():
    images = torch.randn(6, 3, 4, 4).to(memory_format=torch.channels_last)
    alone = [batch.stride() for (batch,) in DataLoader(TensorDataset(images), 2)]
    with applied(NAME):
        assert [batch.stride() for (batch,) in DataLoader(TensorDataset(images), 2)] == alone


def test_writes_by_the_program_to_its_data_show_in_batches():
    dataset = Pairs()
    dataset.inputs = INPUTS.clone()
    with applied(NAME):
        batches = iter(DataLoader(dataset, 5))
        next(batches)
        dataset.inputs[5:10] = 7.0
        assert bool((next(batches)[0] == 7.0).all())
        dataset.inputs = torch.zeros(26, 4)
        assert bool((next(batches)[0] == 0.0).all())


def test_unusual_keys_are_fetched_by_torch_itself():
    with applied(NAME):
        loader = DataLoader(Pairs(), batch_sampler=[[0, 1], [-1, -2], [torch.tensor(3)], [99]])
        batches = iter(loader)
        assert [torch.equal(next(batches)[0], INPUTS[keys]) for keys in ([0, 1], [-1, -2], [3])] == [True] * 3
        with pytest.raises(IndexError, match="99"):
            next(batches)


def test_a_running_epoch_continues_after_closing():
    dataset, classes = Pairs(), dict(vars(DataLoader))
    with applied(NAME):
        batches = iter(DataLoader(dataset, 5))
        first = next(batches)
    rest = list(batches)
    assert torch.equal(torch.cat([first[0], *(batch[0] for batch in rest)]), INPUTS)
    assert dict(vars(DataLoader)) == classes
    assert vars(dataset).keys() == {"inputs", "targets", "asked"}


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(Pairs, ["inputs", "targets"]), (Single, "inputs"), (Shifted, None), (dict, None),
     (Named, {"inputs": "inputs", "pair": ["inputs", "targets"]})],
)  # fmt: skip
def test_reads_what_a_class_returns_from_its_source(kind, shape):
    assert shape_of(kind) == shape


def test_a_wrapper_around_getitem_is_not_bypassed():
    indices = []

    def noting(fetch):
        @functools.wraps(fetch)
        def noted(self, index):
            indices.append(index)
            return fetch(self, index)

        return noted

    class Noted(Pairs):
        def __getitem__(self, index):
            return self.inputs[index], self.targets[index]

    assert shape_of(Noted) == ["inputs", "targets"]
    Noted.__getitem__ = noting(Noted.__getitem__)
    with applied(NAME) as running:
        list(DataLoader(Noted(), 5))
        assert outcome(running)[0] == "no effect"
    assert indices == list(range(len(INPUTS)))


def test_accepts_whole_batches_from_a_torch_batch_sampler():
    sampler = BatchSampler(range(26), 4, drop_last=True)
    with applied(NAME) as running:
        assert len(list(DataLoader(Pairs(), batch_sampler=sampler))) == 6
        assert outcome(running) == ("applied", "Pairs: one index per tensor for a batch of 4")


def test_estimates_its_gain_from_the_wait_for_items():
    detect = entries()[NAME].detect
    assert detect(observation(shares={"data": 0.4}, loaders=(loader(dataset="TensorDataset"),))).most == 0.4
    assert detect(observation(shares={"data": 0.4}, loaders=(loader(workers=2),))) is None
    assert detect(observation(100.0, shares={"data": 0.4})) is None, "625 µs a sample"

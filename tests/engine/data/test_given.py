"""Data as people have it: loaders, datasets and arrays train as the engine's own sources do."""

from __future__ import annotations

import gc
import multiprocessing
import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from hotlap.engine import Checkpoints
from hotlap.engine.data import Arrays, DataMismatch, Loader
from hotlap.engine.errors import BadRecipe
from tests.engine.training import Cut, Rows, cut_at, fitted, numbers, outcome, same, trainer

INPUTS, TARGETS = numbers()


class Squares(Dataset):
    """Rows made one by one; `noise` draws them anew each time."""

    def __init__(self, noise=None):
        self.noise, self.fetched = noise, 0

    def __len__(self):
        return len(INPUTS)

    def __getitem__(self, index):
        self.fetched += 1
        more = {"torch": lambda: float(torch.rand(())), "python": random.random, "numpy": np.random.rand}
        return INPUTS[index] + (more[self.noise]() if self.noise else 0.0), TARGETS[index]


def fit_by(train, **options):
    said = []
    found = fitted(train=train, say=said.append, **options)
    return found, next(line for line in said if line.startswith("training data"))


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_that_stay_the_same_are_fetched_once_and_kept(workers):
    dataset = Squares()
    found, line = fit_by(DataLoader(dataset, batch_size=16, shuffle=True, num_workers=workers))
    assert line.startswith("training data: 70 rows kept in the memory of cpu (1.9 KiB, fetched in ")
    assert "16 rows fetched twice were equal and drew no random numbers" in line
    assert dataset.fetched == 32 + (0 if workers else 70)
    same(outcome(*found), outcome(*fitted()))


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_fetched_by_their_loader_train_the_same(workers):
    loader = DataLoader(Squares(), batch_size=16, shuffle=True, num_workers=workers)
    found, line = fit_by(Loader(loader, keep=False))
    assert line == "training data: 70 rows fetched by its loader, as keep=False says"
    same(outcome(*found), outcome(*fitted()))


@pytest.mark.parametrize("keep", [True, False])
def test_workers_end_with_the_training(keep):
    """Not with a collection, before which the program would wait for each of them for 5 seconds."""
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        fit_by(Loader(DataLoader(Squares(), batch_size=16, num_workers=1), keep=keep))
        assert set(multiprocessing.active_children()) <= before
    finally:
        gc.enable()


@pytest.mark.parametrize("noise", ["torch", "python", "numpy"])
def test_rows_that_draw_random_numbers_are_fetched_each_time(noise):
    _, line = fit_by(DataLoader(Squares(noise), batch_size=16, shuffle=True))
    assert line.endswith("since fetching draws random numbers")


def test_rows_that_change_otherwise_are_fetched_each_time():
    own = np.random.default_rng(0)

    class Changing(Squares):
        def __getitem__(self, index):
            return INPUTS[index] + own.random(), TARGETS[index]

    _, line = fit_by(DataLoader(Changing(), batch_size=16, shuffle=True))
    assert line.endswith("since rows differ when they are fetched twice")


def test_rows_that_depend_on_their_batch_are_fetched_each_time():
    def centred(items):
        inputs, targets = torch.utils.data.default_collate(items)
        return inputs - inputs.mean(0), targets

    _, line = fit_by(DataLoader(Squares(), batch_size=16, shuffle=True, collate_fn=centred))
    assert line.endswith("since a row depends on the others in its batch")


@pytest.mark.parametrize(
    "sampler",
    [
        None,
        lambda: RandomSampler(range(70), replacement=True),
        lambda: WeightedRandomSampler(torch.arange(70.0), 48),
        lambda: WeightedRandomSampler(torch.arange(70.0), 48, generator=torch.Generator()),
    ],
    ids=["shuffled", "replaced", "weighted", "own-generator"],
)
def test_resuming_with_random_rows_is_bit_exact(tmp_path, sampler):
    def loader():
        order = {"shuffle": True} if sampler is None else {"sampler": sampler()}
        return DataLoader(Squares("torch"), batch_size=16, **order)

    made = trainer(log_every=1, callbacks=[cut_at(5)], checkpoints=Checkpoints(tmp_path, steps=1))
    with pytest.raises(Cut):
        made.fit(loader(), Rows(*numbers(seed=1)), 3)
    torch.manual_seed(77)
    resumed = fitted(train=loader(), checkpoints=Checkpoints(tmp_path), resume=True)
    same(outcome(*resumed), outcome(*fitted(train=loader())))


def test_the_order_is_the_loaders():
    """Without shuffle rows come in order, and a sampler of some rows is followed, for validation too."""
    found, _ = fit_by(DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=16))
    same(outcome(*found), outcome(*fitted(shuffle=False)))
    some = list(range(10, 50))
    loader = DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=16, sampler=SubsetRandomSampler(some))
    part = Rows(INPUTS[10:50], TARGETS[10:50])
    (made, history), _ = fit_by(loader, valid=loader)
    same(outcome(made, history), outcome(*fitted(train=part, valid=part)))
    assert made.evaluate(loader) == made.evaluate(part) == history.last.scores


@pytest.mark.parametrize(
    "data",
    [
        (INPUTS, TARGETS),
        [INPUTS.numpy(), TARGETS.numpy()],
        Arrays(INPUTS.numpy(), TARGETS.numpy()),
        TensorDataset(INPUTS, TARGETS),
        Squares(),
        [(INPUTS[row], TARGETS[row]) for row in range(70)],
        Loader([{"y": TARGETS[row], "name": "a", "x": INPUTS[row]} for row in range(70)], columns=("x", "y")),
    ],
    ids=["tensors", "arrays", "reader", "tensor-dataset", "dataset", "list", "dicts"],
)
def test_arrays_and_datasets_are_taken_as_they_are(data):
    found, _ = fit_by(data)
    same(outcome(*found), outcome(*fitted()))


class Endless(IterableDataset):
    def __init__(self, rows=None):
        self.rows = rows

    def __iter__(self):
        for row in range(self.rows or 1000):
            yield INPUTS[row % 70], TARGETS[row % 70]


def test_an_iterable_is_taken_as_it_comes(tmp_path):
    data = Loader(Endless(), rows=70)
    found, line = fit_by(data)
    assert line == "training data: 70 rows taken as it comes, since it is iterable"
    same(outcome(*found), outcome(*fitted(shuffle=False)))
    with pytest.raises(Cut):
        fitted(train=data, log_every=1, callbacks=[cut_at(8)], checkpoints=Checkpoints(tmp_path, steps=1))
    same(outcome(*fitted(train=data, checkpoints=Checkpoints(tmp_path), resume=True)), outcome(*found))


def test_an_iterable_must_have_the_rows_it_says():
    with pytest.raises(DataMismatch, match=r"Endless does not say how many rows it has; use Loader\(data, rows=…\)"):
        fitted(train=Endless())
    with pytest.raises(DataMismatch, match="the data ended early"):
        fitted(train=Loader(Endless(40), rows=70))


def test_loaders_that_do_not_fit_are_refused_before_the_first_step():
    with pytest.raises(BadRecipe, match="the DataLoader has batch_size=8, but the recipe batch_size=16"):
        fitted(train=DataLoader(Squares(), batch_size=8, shuffle=True))
    with pytest.raises(BadRecipe, match="the DataLoader has drop_last=True, but the recipe drop_last=False"):
        fitted(train=DataLoader(Squares(), batch_size=16, drop_last=True))
    with pytest.raises(DataMismatch, match="its batches by list, but steps need batches of one size"):
        fitted(train=DataLoader(Squares(), batch_sampler=[[0, 1], [2]]))
    with pytest.raises(DataMismatch, match="column 'name' holds str, not tensors; leave it out"):
        fitted(train=[{"x": INPUTS[row], "name": "a"} for row in range(70)])
    with pytest.raises(DataMismatch, match="a batch has no column 'z'; it has: x"):
        fitted(train=Loader([{"x": INPUTS[row]} for row in range(70)], columns=("z",)))

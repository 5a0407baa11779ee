"""What workers of a DataLoader draw depends on the seed, the epoch and the batch, and on nothing else."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from hotlap.engine import Checkpoints
from hotlap.engine.data import Loader
from tests.engine.training import Cut, cut_at, fitted, numbers, outcome, same

INPUTS, TARGETS = numbers()


def noise():
    """Return numbers of every stream that people augment with."""
    return torch.rand(()) + random.random() + float(np.random.rand())


class Augmented(Dataset):
    def __len__(self):
        return len(INPUTS)

    def __getitem__(self, index):
        return INPUTS[index] + noise(), TARGETS[index]


class AugmentedTogether(Augmented):
    def __getitems__(self, rows):
        shift = noise()
        return [(INPUTS[row] + shift, TARGETS[row]) for row in rows]


class AugmentedInOrder(IterableDataset):
    def __iter__(self):
        yield from zip(INPUTS + noise(), TARGETS, strict=True)


def loader(data, workers=1, **options):
    return DataLoader(data, batch_size=16, num_workers=workers, **options)


def cut_and_resumed(folder, cut, **options):
    how = {"log_every": 1, "checkpoints": Checkpoints(folder, steps=1)}
    with pytest.raises(Cut):
        fitted(**options, **how, callbacks=[cut_at(cut)])
    return fitted(**options, **how, resume=True)


@pytest.mark.parametrize("data", [Augmented(), AugmentedTogether()], ids=["by row", "by batch"])
def test_a_resumed_epoch_draws_what_it_would_have_drawn(tmp_path, data):
    given = Loader(loader(data), keep=False)
    resumed = cut_and_resumed(tmp_path, cut=8, train=given)
    same(outcome(*resumed), outcome(*fitted(train=given)))


@pytest.mark.parametrize("generator", [None, torch.Generator()])
def test_so_does_an_iterable_whose_workers_would_live_on(tmp_path, generator):
    def given():
        data = loader(AugmentedInOrder(), persistent_workers=True, generator=generator)
        return Loader(data, rows=len(INPUTS))

    resumed = cut_and_resumed(tmp_path, cut=8, train=given())
    same(outcome(*resumed), outcome(*fitted(train=given())))


def test_the_number_of_workers_changes_nothing():
    one, two = (fitted(epochs=2, train=Loader(loader(Augmented(), workers), keep=False)) for workers in (1, 2))
    same(outcome(*one), outcome(*two))


class Draws(Augmented):
    """Rows that are the numbers drawn for them."""

    def __getitem__(self, index):
        return torch.rand(6), TARGETS[index]


def test_no_two_batches_draw_the_same_numbers():
    seen = []

    def step(model, batch):
        if model.training:
            seen.extend(batch[0].flatten().tolist())
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    options = {"loss": None, "step": step, "metrics": {}, "shuffle": False}
    fitted(epochs=3, train=Loader(loader(Draws()), keep=False), **options)
    assert len(set(seen)) == len(seen) == 3 * INPUTS.numel()


class Opened(Augmented):
    """A dataset whose worker_init_fn opens it, as people do with files of HDF5."""

    shift = None

    def __getitem__(self, index):
        return INPUTS[index] + self.shift, TARGETS[index]


def open_it(worker):
    data = get_worker_info().dataset
    assert type(data) is Opened
    data.shift = 1.0


@pytest.mark.parametrize("keep", ["auto", False])
def test_a_worker_init_fn_finds_the_dataset_that_was_given(keep):
    said = []
    found = fitted(train=Loader(loader(Opened(), worker_init_fn=open_it), keep=keep), say=said.append)
    assert keep is False or said[0].endswith("by its workers alone (they may need its worker_init_fn)")
    shifted = [(inputs + 1.0, targets) for inputs, targets in zip(INPUTS, TARGETS, strict=True)]
    same(outcome(*found), outcome(*fitted(train=Loader(loader(shifted, workers=0), keep=False))))

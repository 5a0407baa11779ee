"""loader-persistent: workers stay, and everything is as if they had been started anew."""

import importlib
import multiprocessing
import random

import numpy as np
import psutil
import pytest
import torch
from catalog.loading import Random, Rows, Stream, applied, outcome, shuffled, states, train
from observations import loader, observation
from torch.utils.data import DataLoader, Sampler

from hotlap.catalog import entries

NAME = "loader-persistent"
applying = importlib.import_module("hotlap.catalog.loader_persistent.apply")


def workers_of(loader):
    """Those that are alive."""
    return [one.pid for one in applying._kept[loader].iterator._workers if psutil.pid_exists(one.pid)]


class Seeded(Rows):
    def __getitem__(self, index):
        info = torch.utils.data.get_worker_info()
        row, target = super().__getitem__(index)
        return row * (1 if info is None else info.seed % 7), target


class Eager(Sampler):
    """Draws from the global random numbers as soon as it is asked for an iterator."""

    def __iter__(self):
        return iter(torch.randperm(24).tolist())

    def __len__(self):
        return 24


@pytest.mark.parametrize("sampler", [None, Eager])
def test_losses_and_random_numbers_are_the_same_and_workers_stay(sampler):
    options = {"num_workers": 1, "sampler": sampler and sampler(), "shuffle": sampler is None or None}
    pids = []

    def note(loader, epoch):
        pids.extend(workers_of(loader))

    alone = train(shuffled(**options))
    with applied(NAME) as running:
        assert train(shuffled(**options), between=note) == alone
        assert outcome(running) == ("applied", "workers of Rows")
    assert len(pids) == 3
    assert len(set(pids)) == 1


class Rarely(Rows):
    """One item is random, which a few samples do not show."""

    def __getitem__(self, index):
        row, target = super().__getitem__(index)
        return (row + torch.rand(()) + random.random() + np.random.rand() if index == 21 else row), target


@pytest.mark.parametrize("dataset", [Random("torch"), Random("numpy"), Random("python"), Rarely()])
def test_workers_that_stay_are_seeded_as_those_started_anew(dataset):
    stays_as_started_anew(dataset, num_workers=2)


def test_workers_that_are_no_forks_are_started_anew():
    """Whether they warn, once in a process, could not be seen."""
    with applied(NAME) as running:
        shuffled(Random("numpy"), num_workers=1, multiprocessing_context="spawn")
        assert outcome(running)[0] == "refused"
        assert "no forks" in outcome(running)[1]


def stays_as_started_anew(dataset, **options):
    pids = set()

    def note(loader, epoch):
        pids.update(workers_of(loader))

    alone = train(shuffled(dataset, **options))
    with applied(NAME) as running:
        assert train(shuffled(dataset, **options), between=note) == alone
        assert outcome(running)[0] == "applied", outcome(running)
    assert len(pids) == options["num_workers"]


def test_a_dataset_changed_between_epochs_reaches_the_workers():
    def louder(loader, epoch):
        loader.dataset.scale += 1.0

    def relabel(loader, epoch):
        loader.dataset.rows[3] = float(epoch)

    for change in (louder, relabel):
        alone = train(shuffled(num_workers=1), between=change)
        with applied(NAME):
            assert train(shuffled(num_workers=1), between=change) == alone


def test_an_epoch_left_early_and_two_readers_at_once_are_as_without():
    def read(loader):
        torch.manual_seed(0)
        first = [next(iter(loader))[0] for _ in range(2)]
        pairs = [torch.cat([one[0], other[0]]) for one, other in zip(loader, loader, strict=True)]
        return [batch.tolist() for batch in (*first, *pairs)], states()

    alone = read(shuffled(num_workers=1))
    with applied(NAME):
        assert read(shuffled(num_workers=1)) == alone


def test_a_loader_made_from_one_of_ours_is_one_too():
    """As Accelerate and Lightning make them."""

    def copied(loader):
        names = ("num_workers", "persistent_workers", "batch_sampler")
        return DataLoader(loader.dataset, **{name: getattr(loader, name) for name in names})

    alone = train(copied(shuffled(num_workers=1)))
    with applied(NAME):
        assert train(copied(shuffled(num_workers=1))) == alone


def test_a_loader_that_keeps_its_workers_anyway_is_left_alone():
    alone = train(shuffled(num_workers=1, persistent_workers=True))
    with applied(NAME) as running:
        assert train(shuffled(num_workers=1, persistent_workers=True)) == alone
        assert outcome(running) == ("no effect", "the workers of Rows stay alive already")


@pytest.mark.parametrize(
    ("make", "status", "said"),
    [
        (lambda: shuffled(), "no effect", "without workers"),
        (lambda: DataLoader(Stream(), num_workers=1), "refused", "a stream"),
        (lambda: shuffled(Random("own"), num_workers=1), "refused", "draws from a generator of its own"),
        (lambda: shuffled(num_workers=1, worker_init_fn=print), "refused", "worker_init_fn"),
        (lambda: shuffled(Seeded(), num_workers=1), "refused", "asks which worker it runs in"),
    ],
)
def test_elsewhere_it_says_why_not(make, status, said):
    with applied(NAME) as running:
        make()
        assert outcome(running)[0] == status
        assert said in outcome(running)[1]


def test_once_closed_the_loader_is_as_the_program_made_it():
    with applied(NAME):
        loader, before = shuffled(num_workers=1), vars(shuffled(num_workers=1)).copy()
        assert len(list(loader)) == 3
        assert len(workers_of(loader)) == 1
        assert multiprocessing.active_children() == []  # as without us
        for name in ("persistent_workers", "_iterator", "num_workers"):
            assert vars(loader)[name] == before[name]
        assert vars(loader).keys() == before.keys()
    assert multiprocessing.active_children() == []
    assert len(list(loader)) == 3


def test_workers_of_one_loader_do_not_end_those_of_another():
    """They are forked from a process that holds the first ones, and close what hotlap changed there."""
    with applied(NAME):
        first, second = shuffled(num_workers=1), shuffled(num_workers=1)
        for _ in range(3):
            assert len(list(first)) == 3
            assert len(list(second)) == 3
        assert len({*workers_of(first), *workers_of(second)}) == 2


def test_a_loader_kept_resident_is_drawn_for_as_the_program_made_it():
    alone = train(shuffled(num_workers=1))
    with applied(NAME, "resident-data"):
        assert train(shuffled(num_workers=1)) == alone


def test_what_it_could_save_is_the_wait():
    detect = entries()[NAME].detect
    again = loader(workers=2, length=640, batches=60)
    assert detect(observation(shares={"data": 0.2}, loaders=(again,))).most == 0.2
    assert detect(observation(shares={"data": 0.2}, loaders=(loader(workers=2),))) is None, "the first epoch"

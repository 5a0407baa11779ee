"""loader-persistent keeps workers alive, with the same results as if they had been restarted."""

import gc
import importlib
import multiprocessing
import random
import weakref

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
    """Returns the ids of the loader's living workers."""
    return [
        worker.pid for worker in applying._living_workers[loader].iterator._workers if psutil.pid_exists(worker.pid)
    ]


class Seeded(Rows):
    def __getitem__(self, index):
        info = torch.utils.data.get_worker_info()
        row, target = super().__getitem__(index)
        return row * (1 if info is None else info.seed % 7), target


class Eager(Sampler):
    """The sampler draws a global random number as soon as an iterator is requested."""

    def __iter__(self):
        return iter(torch.randperm(24).tolist())

    def __len__(self):
        return 24


@pytest.mark.parametrize("sampler", [None, Eager])
def test_workers_persist_with_the_same_losses_and_random_numbers(sampler):
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
    """A single item is random, which a few samples do not reveal."""

    def __getitem__(self, index):
        row, target = super().__getitem__(index)
        return (row + torch.rand(()) + random.random() + np.random.rand() if index == 21 else row), target


@pytest.mark.parametrize("dataset", [Random("torch"), Random("numpy"), Random("python"), Rarely()])
def test_persistent_workers_are_seeded_like_restarted_ones(dataset):
    stays_as_started_anew(dataset, num_workers=2)


def test_workers_that_are_not_forked_are_restarted():
    """A process warns only once, so warnings cannot be compared."""
    with applied(NAME) as running:
        shuffled(Random("numpy"), num_workers=1, multiprocessing_context="spawn")
        assert outcome(running)[0] == "refused"
        assert "not forked" in outcome(running)[1]


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


def test_partial_epochs_and_concurrent_iterators_give_the_same_batches():
    def read(loader):
        torch.manual_seed(0)
        first = [next(iter(loader))[0] for _ in range(2)]
        pairs = [torch.cat([batch[0], twin[0]]) for batch, twin in zip(loader, loader, strict=True)]
        return [batch.tolist() for batch in (*first, *pairs)], states()

    alone = read(shuffled(num_workers=1))
    with applied(NAME):
        assert read(shuffled(num_workers=1)) == alone


class AtOnce(Sampler):
    """Batches that are made as soon as an iterator is requested, and end with an error in the third epoch."""

    epoch = 0

    def __iter__(self):
        self.epoch += 1
        if self.epoch > 4:  # torch asks twice an epoch
            raise LookupError("no more epochs")
        return iter([list(range(12)), list(range(12, 24))])

    def __len__(self):
        return 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_batch_sampler_that_runs_at_once_is_left_to_torch():
    with applied(NAME):
        loader = DataLoader(Random("torch"), batch_sampler=AtOnce(), num_workers=1)
        for _ in range(2):
            assert len(list(loader)) == 2
            assert loader not in applying._living_workers
        with pytest.raises(LookupError, match="no more epochs"):
            list(loader)
    gc.collect()  # here, not in another test: torch's unfinished iterator has an error when it is freed


def test_an_iterator_that_the_program_keeps_stays_at_its_end():
    with applied(NAME):
        loader = shuffled(Random("torch"), num_workers=1)
        first = iter(loader)
        assert len(list(first)) > 0
        second = iter(loader)
        assert second is not first
        assert next(first, None) is None
        assert next(second, None) is not None


def test_a_finaliser_of_an_iterator_runs_when_the_program_lets_go_of_it():
    freed = []
    with applied(NAME):
        loader = shuffled(Random("torch"), num_workers=1)
        iterator = iter(loader)
        weakref.finalize(iterator, freed.append, True)
        list(iterator)
        del iterator
        assert freed == [True]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_workers_that_inherit_another_mode_are_started_anew(mode):
    with applied(NAME):
        loader = shuffled(Random("torch"), num_workers=1)
        with mode():
            list(loader)
            (first,) = workers_of(loader)
            list(loader)
            assert workers_of(loader) == [first]
        list(loader)
        assert workers_of(loader) != [first]


def test_processes_are_numbered_as_if_workers_had_been_restarted():
    def number():
        return multiprocessing.Process(target=print)._identity[0]

    with applied(NAME):
        loader = shuffled(Random("torch"), num_workers=2)
        before = number()
        for _ in range(3):
            list(loader)
        assert number() == before + 3 * 2 + 1


def test_a_loader_copied_from_a_patched_one_gives_the_same_losses():
    """Accelerate and Lightning copy loaders like this."""

    def copied(loader):
        names = ("num_workers", "persistent_workers", "batch_sampler")
        return DataLoader(loader.dataset, **{name: getattr(loader, name) for name in names})

    alone = train(copied(shuffled(num_workers=1)))
    with applied(NAME):
        assert train(copied(shuffled(num_workers=1))) == alone


def test_a_loader_with_persistent_workers_is_left_alone():
    alone = train(shuffled(num_workers=1, persistent_workers=True))
    with applied(NAME) as running:
        assert train(shuffled(num_workers=1, persistent_workers=True)) == alone
        assert outcome(running) == ("no effect", "the workers of Rows already stay alive")


@pytest.mark.parametrize(
    ("make", "status", "said"),
    [
        (lambda: shuffled(), "no effect", "without workers"),
        (lambda: DataLoader(Stream(), num_workers=1), "refused", "a stream"),
        (lambda: shuffled(Random("own"), num_workers=1), "refused", "draws from a generator of its own"),
        (lambda: shuffled(num_workers=1, worker_init_fn=print), "refused", "worker_init_fn"),
        (lambda: shuffled(Seeded(), num_workers=1), "refused", "checks which worker it runs in"),
    ],
)
def test_states_why_it_does_not_apply(make, status, said):
    with applied(NAME) as running:
        make()
        assert outcome(running)[0] == status
        assert said in outcome(running)[1]


def test_closing_restores_the_loader():
    with applied(NAME):
        loader, before = shuffled(num_workers=1), vars(shuffled(num_workers=1)).copy()
        assert len(list(loader)) == 3
        assert len(workers_of(loader)) == 1
        assert multiprocessing.active_children() == []  # as without hotlap
        for name in ("persistent_workers", "_iterator", "num_workers"):
            assert vars(loader)[name] == before[name]
        assert vars(loader).keys() == before.keys()
    assert multiprocessing.active_children() == []
    assert len(list(loader)) == 3


def test_workers_of_one_loader_do_not_end_those_of_another():
    """The second workers are forked from a process that holds the first ones, and undo hotlap's changes there."""
    with applied(NAME):
        first, second = shuffled(num_workers=1), shuffled(num_workers=1)
        for _ in range(3):
            assert len(list(first)) == 3
            assert len(list(second)) == 3
        assert len({*workers_of(first), *workers_of(second)}) == 2


def test_resident_loaders_draw_the_same_random_numbers():
    alone = train(shuffled(num_workers=1))
    with applied(NAME, "resident-data"):
        assert train(shuffled(num_workers=1)) == alone


def test_estimates_its_gain_from_the_wait_for_data():
    detect = entries()[NAME].detect
    rebuilt = loader(workers=2, length=640, batches=60)
    assert detect(observation(shares={"data": 0.2}, loaders=(rebuilt,))).most == 0.2
    assert detect(observation(shares={"data": 0.2}, loaders=(loader(workers=2),))) is None, "the first epoch"

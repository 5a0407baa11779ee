"""loader-workers: how many, for which data, and the same losses where samples are free of random numbers."""

import os
import random
import subprocess
import sys
import textwrap
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from catalog.loading import Random, Rows, SplitStream, Stream, applied, outcome, shuffled, train
from harness import environment
from observations import input_bound, loader, observation
from torch.utils.data import DataLoader, Sampler, TensorDataset

from hotlap import machine
from hotlap.catalog.loader_workers import reaper
from hotlap.catalog.loader_workers.detect import detect

MODULE = import_module("hotlap.catalog.loader_workers.apply")


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch):
    monkeypatch.setattr("hotlap.catalog.loader_workers.apply.cores_of_a_rank", lambda: 4)
    monkeypatch.setattr(machine, "training_threads", lambda torch: 1)
    monkeypatch.setattr(MODULE, "LIGHT_BATCH_US", 100.0)


def test_losses_and_random_numbers_are_those_without_workers():
    random.seed(1)
    np.random.seed(1)
    alone = train(shuffled())
    random.seed(1)
    np.random.seed(1)
    with applied("loader-workers=2") as running:
        loader = shuffled()
        assert loader.num_workers == 2
        assert train(loader) == alone
        assert outcome(running) == ("applied", "Rows: 0 → 2 workers")


def test_workers_that_another_entry_leaves_without_work_are_not_said_to_help():
    alone, entries = train(shuffled()), ("loader-workers=2", "loader-persistent", "loader-prefetch")
    with applied("resident-data", *entries) as running:
        assert train(shuffled()) == alone
        told = [outcome(running, name.partition("=")[0]) for name in entries]
        assert told == [("no effect", "Rows is kept by another entry, so no workers start")] * 3
        assert outcome(running, "resident-data")[0] == "applied"


def test_once_closed_the_loader_is_as_the_program_made_it():
    plain = shuffled()
    untouched = dict(vars(DataLoader))
    with applied("loader-workers=2"):
        changed = shuffled()
    for name in ("num_workers", "prefetch_factor", "persistent_workers"):
        assert getattr(changed, name) == getattr(plain, name)
    assert vars(changed).keys() == vars(plain).keys()
    assert dict(vars(DataLoader)) == untouched


@pytest.mark.parametrize(("asked", "given"), [("1", 1), ("3", 3), ("64", 3)])
def test_a_number_asked_for_is_kept_as_far_as_the_cores_allow(asked, given):
    with applied(f"loader-workers={asked}") as running:
        loader = shuffled()
        assert loader.num_workers == given
        iter(loader)
        assert ("cores allow no more" in outcome(running)[1]) == (asked == "64")


def test_found_are_as_many_as_help_but_one_core_is_the_trainings(monkeypatch):
    with applied("loader-workers"):
        assert shuffled().num_workers == 3
        assert shuffled(Rows(16)).num_workers == 2, "an epoch of two batches"
    monkeypatch.setattr(machine, "training_threads", lambda torch: 4)
    with applied("loader-workers") as running:
        assert shuffled().num_workers == 0
        assert outcome(running) == ("no effect", "Rows gets no workers: 4 cores, 4 of them for the training")


def test_little_memory_allows_fewer(monkeypatch):
    monkeypatch.setattr(machine, "free_bytes", lambda: 2 * 2 * (machine.WORKER_BYTES + 4096))
    with applied("loader-workers=3"):
        assert shuffled().num_workers == 2


def test_light_data_stays_without(monkeypatch):
    monkeypatch.setattr(MODULE, "LIGHT_BATCH_US", 1e6)
    with applied("loader-workers") as running:
        assert DataLoader(TensorDataset(torch.zeros(64, 2)), 32).num_workers == 0
        status, why = outcome(running)
        assert status == "no effect"
        assert why.startswith("TensorDataset: a batch takes only ")


@pytest.mark.parametrize("how", ["torch", "numpy", "python", "own"])
def test_random_augmentation_is_refused_also_where_it_is_asked_for(how):
    """In workers it would draw other numbers, which is more than rounding."""
    for choice, is_asked in (("loader-workers", False), ("loader-workers=2", True)):
        with applied(choice, asked=is_asked) as running:
            assert shuffled(Random(how)).num_workers == 0
            status, why = outcome(running)
            assert status == "refused"
            assert "draws" in why


class Failing(Rows):
    def __getitem__(self, index):
        if index < 100:
            raise OSError("no such file")
        return self.rows[index]


class Identified(Rows):
    def __getitem__(self, index):
        return self.rows[index] + os.getpid()


@pytest.mark.parametrize(
    ("dataset", "said"), [(Failing, "OSError: no such file"), (Identified, "asks the operating system")]
)
def test_data_that_another_process_may_not_fetch_alike_is_refused(dataset, said):
    with applied("loader-workers") as running:
        assert shuffled(dataset()).num_workers == 0
        status, why = outcome(running)
        assert status == "refused"
        assert said in why


def test_random_numbers_of_the_collate_function_count():
    with applied("loader-workers") as running:
        assert shuffled(collate_fn=lambda rows: torch.rand(2)).num_workers == 0
        assert outcome(running)[0] == "refused"


def test_streams_are_refused():
    for stream, asked, workers in (
        (Stream, False, 0),
        (Stream, True, 0),
        (SplitStream, False, 0),
        (SplitStream, True, 2),
    ):
        with applied("loader-workers=2", asked=asked) as running:
            loader = DataLoader(stream(), batch_size=2)
            assert loader.num_workers == workers
            assert sorted(torch.cat(list(loader))[:, 0].tolist()) == [0.0, 4.0, 8.0, 12.0, 16.0, 20.0]
            assert outcome(running)[0] == ("applied" if workers else "refused")


class Curious(Sampler):
    def __iter__(self):
        return iter(range(24))

    def __len__(self):
        return 24


def test_a_sampler_of_the_programs_own_is_not_read_ahead():
    batches = torch.utils.data.BatchSampler(Curious(), 8, False)
    for options in (
        {"sampler": Curious(), "shuffle": None},
        {"batch_sampler": batches, "batch_size": 1, "shuffle": None},
    ):
        with applied("loader-workers=2") as running:
            assert shuffled(**options).num_workers == 0
            assert "Curious" in outcome(running)[1]
        with applied("loader-workers=2", asked=True):
            assert shuffled(**options).num_workers == 2


def test_an_error_of_the_programs_stays_one():
    with applied("loader-workers=2"):
        with pytest.raises(ValueError, match="persistent_workers option needs"):
            DataLoader(Rows(), persistent_workers=True)
        with pytest.raises(ValueError, match="num_workers option should be non-negative"):
            DataLoader(Rows(), num_workers=-1)
        with pytest.raises(TypeError):
            DataLoader()


def test_a_loader_with_enough_workers_keeps_them():
    with applied("loader-workers=2") as running:
        assert DataLoader(Rows(), 8, True, None, None, 2).num_workers == 2
        assert outcome(running) == ("no effect", "Rows has 2 workers already")


def test_a_loader_prepared_by_accelerate_trains_to_the_same_losses():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    alone = train(accelerator.prepare(shuffled()))
    with applied("loader-workers=2", "loader-persistent", "loader-prefetch") as running:
        prepared = accelerator.prepare(shuffled())
        assert train(prepared) == alone
        assert prepared.num_workers == 2
        assert [one.status for one in running.outcomes] == ["applied"] * 3


ORPHANS = """
import os, sys, time, numpy
from torch.utils.data import DataLoader
from catalog.loading import Rows, applied
from hotlap.catalog.loader_workers import reaper

def keep(rows):
    return [numpy.zeros(100_000) for _ in rows]

reaper.GRACE = 0.5
with applied("loader-workers"):
    batches = iter(DataLoader(Rows(), 2, num_workers=2, collate_fn=keep))
    next(batches)
    print(*[worker.pid for worker in batches._workers], flush=True)
    time.sleep(60)
"""


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_workers_do_not_outlive_a_killed_training():
    """Torch's own watchdog leaves these: what they were to send does not fit the pipe."""
    path = str(Path(__file__).parents[1])
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(ORPHANS)],
        env=environment(PYTHONPATH=f"{path}{os.pathsep}{Path(path).parent}"), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with program:
        workers = [int(pid) for pid in program.stdout.readline().split()]
        assert all(alive(pid) for pid in workers)
        assert len(workers) == 2
        program.kill()
    until = time.monotonic() + 20
    while any(alive(pid) for pid in workers) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(alive(pid) for pid in workers)


def test_workers_of_a_training_that_goes_on_without_us_live(monkeypatch):
    monkeypatch.setattr(reaper, "GRACE", 0.0)
    with applied("loader-workers=2"):
        batches = iter(shuffled(num_workers=2, batch_size=2))
        next(batches)
    time.sleep(0.5)
    assert all(worker.is_alive() for worker in batches._workers)
    assert len(list(batches)) == 11


def test_what_it_could_save_is_the_wait():
    assert detect(input_bound()).most == 0.72
    assert detect(observation()) is None, "a light batch"
    assert detect(observation(40.0, shares={"data": 0.7}, loaders=(loader(dataset_kind="iterable"),))) is None

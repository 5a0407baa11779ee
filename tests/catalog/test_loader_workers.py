"""loader-workers chooses how many workers for which data, with the same losses where samples draw no random numbers."""

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
def _four_cores(answering, constants):
    answering("hotlap.catalog.loader_workers.apply", cores_of_a_rank=4)
    answering(machine, training_threads=1)
    constants(MODULE, LIGHT_BATCH_US=100.0)


def test_losses_and_random_numbers_equal_those_without_workers():
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


def test_has_no_effect_where_another_entry_leaves_workers_idle():
    alone, entries = train(shuffled()), ("loader-workers=2", "loader-persistent", "loader-prefetch")
    with applied("resident-data", *entries) as running:
        assert train(shuffled()) == alone
        outcomes = [outcome(running, name.partition("=")[0]) for name in entries]
        assert outcomes == [("no effect", "Rows is cached by another optimisation, so no workers start")] * 3
        assert outcome(running, "resident-data")[0] == "applied"


def test_closing_restores_the_loader():
    plain = shuffled()
    untouched = dict(vars(DataLoader))
    with applied("loader-workers=2"):
        changed = shuffled()
    for name in ("num_workers", "prefetch_factor", "persistent_workers"):
        assert getattr(changed, name) == getattr(plain, name)
    assert vars(changed).keys() == vars(plain).keys()
    assert dict(vars(DataLoader)) == untouched


@pytest.mark.parametrize(("requested", "given"), [("1", 1), ("3", 3), ("64", 3)])
def test_a_requested_number_is_limited_only_by_the_cores(requested, given):
    with applied(f"loader-workers={requested}") as running:
        loader = shuffled()
        assert loader.num_workers == given
        iter(loader)
        assert ("cores allow no more" in outcome(running)[1]) == (requested == "64")


def test_chooses_as_many_workers_as_help_and_leaves_the_training_a_core(answering):
    with applied("loader-workers"):
        assert shuffled().num_workers == 3
        assert shuffled(Rows(16)).num_workers == 2, "an epoch of two batches"
    answering(machine, training_threads=4)
    with applied("loader-workers") as running:
        assert shuffled().num_workers == 0
        assert outcome(running) == ("no effect", "Rows gets no workers: 4 cores, 4 of them for the training")


def test_little_memory_allows_fewer(monkeypatch):
    monkeypatch.setattr(machine, "free_bytes", lambda: 2 * 2 * (machine.WORKER_BYTES + 4096))
    with applied("loader-workers=3"):
        assert shuffled().num_workers == 2


def test_cheap_data_gets_no_workers(constants):
    constants(MODULE, LIGHT_BATCH_US=1e6)
    with applied("loader-workers") as running:
        assert DataLoader(TensorDataset(torch.zeros(64, 2)), 32).num_workers == 0
        status, why = outcome(running)
        assert status == "no effect"
        assert why.startswith("TensorDataset: a batch takes only ")


@pytest.mark.parametrize("how", ["torch", "numpy", "python", "own"])
def test_refuses_random_augmentation_even_when_requested(how):
    """Augmentation would draw other numbers in workers, which is more than rounding."""
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
    ("dataset", "said"), [(Failing, "OSError: no such file"), (Identified, "queries the operating system")]
)
def test_refuses_data_that_another_process_may_fetch_differently(dataset, said):
    with applied("loader-workers") as running:
        assert shuffled(dataset()).num_workers == 0
        status, why = outcome(running)
        assert status == "refused"
        assert said in why


def test_random_numbers_drawn_by_the_collate_function_count():
    with applied("loader-workers") as running:
        assert shuffled(collate_fn=lambda rows: torch.rand(2)).num_workers == 0
        assert outcome(running)[0] == "refused"


def test_refuses_iterable_datasets():
    for stream, requested, workers in (
        (Stream, False, 0),
        (Stream, True, 0),
        (SplitStream, False, 0),
        (SplitStream, True, 2),
    ):
        with applied("loader-workers=2", asked=requested) as running:
            loader = DataLoader(stream(), batch_size=2)
            assert loader.num_workers == workers
            assert sorted(torch.cat(list(loader))[:, 0].tolist()) == [0.0, 4.0, 8.0, 12.0, 16.0, 20.0]
            assert outcome(running)[0] == ("applied" if workers else "refused")


class Curious(Sampler):
    def __iter__(self):
        return iter(range(24))

    def __len__(self):
        return 24


def test_a_custom_sampler_is_not_read_ahead():
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


def test_an_error_of_the_program_is_still_raised():
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
        assert outcome(running) == ("no effect", "Rows already has 2 workers")


def test_a_loader_prepared_by_accelerate_trains_to_the_same_losses():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    alone = train(accelerator.prepare(shuffled()))
    with applied("loader-workers=2", "loader-persistent", "loader-prefetch") as running:
        prepared = accelerator.prepare(shuffled())
        assert train(prepared) == alone
        assert prepared.num_workers == 2
        assert [entry.status for entry in running.outcomes] == ["applied"] * 3


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
    """Torch's own watchdog misses these workers, because their data does not fit the pipe."""
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
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(alive(pid) for pid in workers)


def test_workers_survive_when_training_continues_without_hotlap(constants):
    constants(reaper, GRACE=0.0)
    with applied("loader-workers=2"):
        batches = iter(shuffled(num_workers=2, batch_size=2))
        next(batches)
    time.sleep(0.5)
    assert all(worker.is_alive() for worker in batches._workers)
    assert len(list(batches)) == 11


def test_estimates_its_gain_from_the_wait_for_data():
    assert detect(input_bound()).most == 0.72
    assert detect(observation()) is None, "a light batch"
    assert detect(observation(40.0, shares={"data": 0.7}, loaders=(loader(dataset_kind="iterable"),))) is None

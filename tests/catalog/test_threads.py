"""threads matches the thread count to the cores, before torch starts or beside loader workers; the user's stays."""

from __future__ import annotations

import re
import sys
from importlib import import_module

import pytest
import torch
from harness import HOTLAP, bare
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import hotlap
from hotlap.catalog.threads.detect import detect
from tests.observations import loader, machine, observation, on_cuda, settings

APPLY = import_module("hotlap.catalog.threads.apply")


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in (*APPLY.VARIABLES, APPLY.OURS, "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    before = torch.get_num_threads()
    yield
    hotlap.disable()
    torch.set_num_threads(before)


def cores(monkeypatch, usable, bound=None):
    monkeypatch.setattr("hotlap.machine.usable_cores", lambda: usable)
    monkeypatch.setattr(APPLY, "usable_cores", lambda: usable)
    monkeypatch.setattr(APPLY, "bound_cores", lambda: bound or usable)


def test_sets_the_environment_where_openmp_would_see_too_many_cores(monkeypatch):
    cores(monkeypatch, usable=2, bound=16)
    assert APPLY.environment(None, {}) == {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "HOTLAP_THREADS": "2"}
    assert APPLY.environment(3, {})["OMP_NUM_THREADS"] == "3"
    assert APPLY.environment(None, {"OMP_NUM_THREADS": "7"}) == {}
    cores(monkeypatch, usable=16)
    assert APPLY.environment(None, {}) == {}


@pytest.mark.parametrize(
    ("cores", "workers", "threads"), [(2, 2, 1), (2, 1, 1), (8, 0, 8), (8, 2, 6), (8, 8, 2), (1, 4, 1)]
)
def test_workers_leave_fewer_threads_to_the_training(cores, workers, threads):
    assert APPLY.threads_beside(cores, workers) == threads


def test_a_loader_with_workers_lowers_the_thread_count_until_disabled(monkeypatch):
    cores(monkeypatch, usable=2)
    torch.set_num_threads(2)
    enabled = hotlap.enable(None, with_=["threads"])
    assert enabled.outcomes[0].status == "no effect"
    list(DataLoader(range(4), num_workers=1))
    assert torch.get_num_threads() == 1
    assert enabled.outcomes[0].why == "1 thread, not 2: 1 loader workers need cores too"
    hotlap.disable()
    assert torch.get_num_threads() == 2


def test_workers_that_never_start_take_no_core(monkeypatch):
    cores(monkeypatch, usable=2)
    torch.set_num_threads(2)
    hotlap.enable(None, with_=["threads", "resident-data"])
    list(DataLoader(TensorDataset(torch.zeros(8, 1)), num_workers=1))
    assert torch.get_num_threads() == 2
    hotlap.disable()


def test_a_plan_leaves_the_training_cores_of_its_own_beside_workers(monkeypatch):
    cores(monkeypatch, usable=2)
    torch.set_num_threads(2)
    hotlap.enable("fast", at_once=True)
    list(DataLoader(Numbers(), num_workers=1))
    assert torch.get_num_threads() == 2
    hotlap.disable()


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(4))


def test_ranks_on_one_machine_share_its_cores(monkeypatch):
    cores(monkeypatch, usable=4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    torch.set_num_threads(4)
    enabled = hotlap.enable(None, with_=["threads"])
    assert torch.get_num_threads() == 2
    assert enabled.outcomes[0].status == "applied"


def test_the_users_setting_stays_unless_a_number_is_requested(monkeypatch):
    cores(monkeypatch, usable=1)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    enabled = hotlap.enable(None, with_=["threads"])
    assert torch.get_num_threads() == 2
    assert enabled.outcomes[0].why == "OMP_NUM_THREADS=2 is set, which takes precedence"
    hotlap.enable(None, with_=["threads=1"])
    assert torch.get_num_threads() == 1


def test_a_command_gets_the_thread_count_before_torch_starts(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, torch\n"
        "print(os.environ.get('OMP_NUM_THREADS'), os.environ.get('MKL_NUM_THREADS'), torch.get_num_threads())\n"
        "p = torch.nn.Parameter(torch.zeros(1)); p.grad = torch.ones(1)\n"
        "torch.optim.SGD([p], lr=1.0).step()\n"
    )
    command = ["env", "-u", "OMP_NUM_THREADS", *HOTLAP, "run", "--with", "threads=3", sys.executable, "train.py"]
    ran = bare(command, tmp_path)
    assert ran.code == 0, ran.stderr
    assert ran.stdout == "3 3 3\n"
    assert re.search(r"applied: threads \(3 threads(, not \d+)?: as requested\)", ran.stderr)  # OpenMP may give fewer


def test_estimates_a_gain_where_threads_and_workers_share_cores():
    crowded = observation(
        machine=machine(cores=2), settings=settings(threads=2), loaders=(loader(role="train", workers=2),)
    )
    assert "2 threads and 2 loader workers share 2 cores" in detect(crowded).why
    assert detect(observation(machine=machine(cores=16), settings=settings(threads=8), loaders=())) is None
    assert detect(on_cuda()) is None

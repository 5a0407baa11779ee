"""Several processes end together: where one fails, is killed or gets a signal, nothing hangs and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from once import made_once

from tests.engine.shared_trainings import alike
from tests.engine.test_processes import close
from tests.engine.training import same

ROOT = Path(__file__).parents[2]
PRINTED = {
    "dataset": "ValueError: row 37 cannot be read",
    "callback": "ValueError: the callback of process 1 broke",
    "metric": "ValueError: the metric of process 1 broke",
    "shapes": "BadRecipe: the loss compares target and outputs of different shapes ([8] and [8, 1])",
    "occupied": "CheckpointsInTheWay: ",
    "unwritable": "CheckpointNotWritten: no checkpoint can be written to ",
    "forgotten": "BadRecipe: 2 processes were started together, and each would train on all rows",
    "different": "BadRecipe: process 1 has rows to train on 71, but the first one 70",
    "lonely": "another process of this training has ended, or took no part: all must call fit and evaluate",
}
SIGNALLED = ("endless-SIGTERM", "endless-SIGINT")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made_once(tmp_path_factory, "failing-processes", launch_all)


def launch_all(folder):
    names = (*PRINTED, *SIGNALLED, "killed", "on_two_machines")
    command = [sys.executable, "-m", "tests.engine.forked_launches", str(folder), *names]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=1800)


def codes(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


@pytest.mark.parametrize("name", PRINTED)
def test_an_error_ends_all_processes_and_is_printed_once(folder, name):
    printed = (folder / f"{name}.txt").read_text()
    assert codes(folder, name) == [1]
    assert printed.count(PRINTED[name]) == 1


@pytest.mark.parametrize("name", SIGNALLED)
def test_a_signal_to_the_launcher_ends_all_processes_after_the_step(folder, name):
    assert codes(folder, name) == [1]
    place = torch.load(folder / name / "kept" / "last.pt", weights_only=True)["place"]
    assert place["epoch"] == 0
    assert place["window"] > 0


def test_a_run_that_is_killed_again_and_again_ends_as_one_that_is_not(folder):
    assert codes(folder, "killed") == [0]
    for rank in range(2):
        found = torch.load(folder / "killed" / f"rank-{rank}.pt", weights_only=False)
        for calm, killed in found.values():
            same(calm, killed)


def test_only_the_machine_of_the_first_process_needs_the_folder(folder):
    assert codes(folder, "on_two_machines") == [0, 0]
    found = folder / "on_two_machines"
    assert [path.name for path in found.glob("machine-*")] == ["machine-0"]
    first, second = (torch.load(found / f"rank-{rank}.pt", weights_only=False) for rank in range(2))
    same(first, second)
    close(first, alike({}, epochs=3))

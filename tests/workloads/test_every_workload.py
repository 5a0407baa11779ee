"""Every workload: its data is reproducible and repaired, and on a GPU the graph trains like the eager step."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from harness import warm
from workload_modules import NAMES, WORKLOADS, in_order, load_workload, run_in_process

from hotlap.engine import EpochRecord


def test_every_folder_with_a_naive_script_is_tested() -> None:
    assert {path.parent.name for path in WORKLOADS.glob("*/naive.py")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_determines_the_bytes_of_the_data(name: str, data_root: Path, tmp_path: Path) -> None:
    workload = load_workload(name)
    first, again = (workload.data.ensure("tiny", seed=0, root=root) for root in (data_root, tmp_path))
    same = workload.cache.checksums(first)
    assert same == workload.cache.checksums(again)
    other = workload.cache.checksums(workload.data.ensure("tiny", seed=1, root=tmp_path))
    assert same.keys() == other.keys()
    assert not set(same.values()) & set(other.values())


@pytest.mark.parametrize("name", NAMES)
def test_truncated_files_are_generated_again(name: str, data_root: Path, tmp_path: Path) -> None:
    workload = load_workload(name)
    folder = workload.data.default_folder("tiny", root=tmp_path)
    shutil.copytree(workload.data.ensure("tiny", root=data_root), folder)
    before = workload.cache.checksums(folder)
    for torn in {folder / min(before), folder / max(before)}:
        os.truncate(torn, torn.stat().st_size // 2)
    assert workload.cache.checksums(workload.data.ensure("tiny", root=tmp_path)) == before


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough) if name == "banknotes" else name for name in NAMES]
)
def test_the_engine_reaches_the_target_of_the_naive_script(name, data_root, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("HOTLAP_DATA", str(tmp_path))  # where the engine caches prepared data
    workload = load_workload(name)
    folder = workload.data.ensure("tiny", root=data_root)
    common = ["--size", "tiny", "--data", str(folder), "--out", str(tmp_path), "--device", "cpu"]
    outcome = run_in_process(workload.fast.main, capsys, *common)
    assert outcome.reached
    assert len(outcome.losses) == workload.naive.defaults("tiny").epochs
    assert outcome.losses[-1] < outcome.losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_reports_preparing_and_evaluating_separately_from_training(name, capsys) -> None:
    workload = load_workload(name)
    scores = {workload.naive.METRIC: 0.5, "accuracy": 0.5, "file_f1": 0.5}
    workload.fast.tell(EpochRecord(4, 0.25, scores, 1.5, 0.125, 2.75, rows=10, steps=4, learning_rate=0.1))
    printed = capsys.readouterr()
    assert printed.out == workload.naive.epoch_line(4, 0.25, 0.5, 1.5) + "\n"
    assert printed.err.endswith("prepare_seconds 2.7500  eval_seconds 0.1250\n")


@pytest.mark.parametrize("name", ["battery_fnn", "leak"])
def test_data_py_prints_the_folder(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(WORKLOADS / name / "data.py"), "--size", "tiny"]
    done = warm(command, tmp_path, HOTLAP_DATA=str(tmp_path))
    assert done.code == 0, done.stderr
    assert done.stdout.strip() == str(load_workload(name).data.default_folder("tiny", root=tmp_path))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("name", NAMES)
def test_the_graph_trains_as_the_eager_step_does(name: str, tmp_path: Path, capsys, monkeypatch) -> None:
    workload = load_workload(name)
    folder = workload.data.ensure("tiny", root=tmp_path)
    options = {"banknotes": ["--precision", "tf32"], "leak": ["--no-compile"]}.get(name, [])
    common = ["--size", "tiny", "--epochs", "2", "--data", str(folder), "--out", str(tmp_path), *options]
    if not options:  # the other two draw the batches of naive.py on the host, on any device
        in_order(monkeypatch, workload)
    eager = run_in_process(workload.limit.main, capsys, *common, "--device", "cpu")
    graphed = run_in_process(workload.limit.main, capsys, *common, "--device", "cuda")
    assert graphed.samples == eager.samples
    assert graphed.losses == pytest.approx(eager.losses, rel=0.05, abs=1e-4)

"""A small net learns state of charge from single rows; broken training shows in the RMSE."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from workload_modules import Workload, load_workload, outcome_of, run_in_process, run_script

NAME = "battery_fnn"


@pytest.fixture(scope="module")
def workload() -> Workload:
    torch.set_num_threads(1)
    return load_workload(NAME)


@pytest.fixture(scope="module")
def data_root(workload: Workload, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    workload.data.ensure("tiny", seed=0, root=root)
    return root


@pytest.fixture
def common(workload: Workload, data_root: Path, tmp_path: Path) -> list[str]:
    """Arguments that keep a run in this process: no workers, the tests' own data, the CPU."""
    folder = workload.data.default_folder("tiny", root=data_root)
    return ["--size", "tiny", "--workers", "0", "--device", "cpu", "--data", str(folder), "--out", str(tmp_path)]


def test_the_same_seed_gives_the_same_bytes_and_another_gives_others(workload, data_root, tmp_path) -> None:
    checksums = workload.cache.checksums
    first = checksums(workload.data.default_folder("tiny", root=data_root))
    assert first == checksums(workload.data.ensure("tiny", seed=0, root=tmp_path))
    other = checksums(workload.data.ensure("tiny", seed=1, root=tmp_path))
    assert first.keys() == other.keys()
    assert not set(first.values()) & set(other.values())


def test_a_torn_file_is_made_again(workload, tmp_path: Path) -> None:
    folder = workload.data.ensure("tiny", seed=0, root=tmp_path)
    before = workload.cache.checksums(folder)
    torn = folder / sorted(before)[0]
    os.truncate(torn, torn.stat().st_size // 2)
    assert workload.cache.checksums(workload.data.ensure("tiny", seed=0, root=tmp_path)) == before


def test_data_py_prints_the_folder(data_root: Path, workload: Workload) -> None:
    done = run_script(NAME, "data.py", "--size", "tiny", data_root=data_root)
    assert done.stdout.strip() == str(workload.data.default_folder("tiny", root=data_root))


def test_cycles_look_like_a_battery(workload, data_root: Path) -> None:
    for frame in workload.naive.load_cycles(workload.data.default_folder("tiny", root=data_root) / "train"):
        assert frame["voltage_v"].between(2.0, 4.5).all()
        assert frame["temperature_c"].between(-5, 60).all()
        assert frame["soc"].iloc[0] > 0.85
        assert frame["soc"].iloc[-1] < frame["soc"].iloc[0] - 0.5
        assert (frame["current_a"] < 0).mean() > 0.5  # discharging, with some regeneration
        assert frame["current_a"].max() > 0.5


def test_the_script_as_a_user_runs_it_reaches_the_target(data_root: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    done = run_script(NAME, "naive.py", "--size", "tiny", "--out", str(out), "--device", "cpu", data_root=data_root)
    outcome = outcome_of(done.stdout)
    assert outcome.reached
    assert outcome.losses[-1] < outcome.losses[0]
    assert (out / "best_model.pth").exists()


def test_a_run_repeats_exactly(workload, common, capsys) -> None:
    first = run_in_process(workload.naive.main, capsys, *common, "--epochs", "1")
    assert run_in_process(workload.naive.main, capsys, *common, "--epochs", "1") == first


def test_shuffled_labels_miss_the_target_clearly(workload, common, capsys, monkeypatch) -> None:
    build = workload.naive.build_datasets

    def shuffled(folder, settings):
        train, valid = build(folder, settings)
        features, targets = train.tensors
        order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(1))
        return TensorDataset(features, targets[order]), valid

    monkeypatch.setattr(workload.naive, "build_datasets", shuffled)
    outcome = run_in_process(workload.naive.main, capsys, *common)
    assert outcome.final > 2 * workload.naive.TARGETS["tiny"]


def test_dropped_gradients_miss_the_target_clearly(workload, common, capsys, monkeypatch) -> None:
    build = workload.naive.build_model

    def numb(settings):
        model = build(settings)
        for parameter in model.parameters():
            parameter.register_hook(torch.zeros_like)
        return model

    monkeypatch.setattr(workload.naive, "build_model", numb)
    outcome = run_in_process(workload.naive.main, capsys, *common, "--epochs", "2")
    assert outcome.final > 2 * workload.naive.TARGETS["tiny"]


def test_the_limit_reaches_the_target(workload, common, capsys) -> None:
    outcome = run_in_process(workload.limit.main, capsys, *common)
    assert outcome.reached
    assert outcome.metrics[-1] == pytest.approx(outcome.final, abs=2e-4)  # its own fast metric is the same one


def in_order(monkeypatch, workload: Workload) -> None:
    """Both scripts take the samples in the order of the file."""
    monkeypatch.setattr(
        workload.naive, "DataLoader", lambda *parts, **options: DataLoader(*parts, **{**options, "shuffle": False})
    )
    monkeypatch.setattr(
        workload.limit, "epoch_order", lambda samples, generator, device: torch.arange(samples, device=device)
    )


def test_the_limit_trains_the_same_thing(workload, common, capsys, monkeypatch) -> None:
    in_order(monkeypatch, workload)
    naive = run_in_process(workload.naive.main, capsys, *common, "--epochs", "2")
    limit = run_in_process(workload.limit.main, capsys, *common, "--epochs", "2")
    assert limit.losses == pytest.approx(naive.losses, rel=0.01, abs=2e-5)
    assert limit.final == pytest.approx(naive.final, abs=2e-3)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_the_graph_trains_as_the_eager_step_does(workload, common, capsys, monkeypatch) -> None:
    in_order(monkeypatch, workload)
    eager = run_in_process(workload.limit.main, capsys, *common, "--epochs", "2")
    graphed = run_in_process(workload.limit.main, capsys, *common, "--epochs", "2", "--device", "cuda")
    assert graphed.losses == pytest.approx(eager.losses, rel=0.05, abs=1e-4)


def test_rows_are_the_rows_of_the_cycles(workload, data_root: Path) -> None:
    settings = replace(workload.naive.defaults("tiny"), batch_size=1)
    campaign = workload.data.SIZES["tiny"]
    train, valid = workload.naive.build_datasets(workload.data.default_folder("tiny", root=data_root), settings)
    assert len(train) == campaign.train_cycles * campaign.rows
    assert len(valid) == campaign.valid_cycles * campaign.rows
    assert train[0][0].shape == (len(workload.naive.FEATURES),)

"""A small net learns state of charge from single rows, and broken training shows in the RMSE."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset
from workload_modules import in_order, outcome_of, run_in_process, run_script, with_dropped_gradients

NAME = "battery_fnn"
ENOUGH = ["--epochs", "4"]  # an honest run is well below its target by then; a broken one must not be


def test_cycles_look_like_those_of_a_battery(workload, folder: Path) -> None:
    for frame in workload.naive.load_cycles(folder / "train"):
        assert frame["voltage_v"].between(2.0, 4.5).all()
        assert frame["temperature_c"].between(-5, 60).all()
        assert frame["soc"].iloc[0] > 0.85
        assert frame["soc"].iloc[-1] < frame["soc"].iloc[0] - 0.5
        assert (frame["current_a"] < 0).mean() > 0.5  # discharging, with some regeneration
        assert frame["current_a"].max() > 0.5


@pytest.mark.thorough
def test_the_script_as_a_user_runs_it_reaches_the_target(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    options = ["--size", "tiny", "--device", "cpu", *ENOUGH, "--out", str(out)]
    done = run_script(NAME, "naive.py", *options, data_root=folder.parents[1])
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
    outcome = run_in_process(workload.naive.main, capsys, *common, *ENOUGH)
    assert outcome.final > 2 * workload.naive.TARGETS["tiny"]


def test_dropped_gradients_miss_the_target_clearly(workload, common, capsys, monkeypatch) -> None:
    with_dropped_gradients(monkeypatch, workload.naive)
    outcome = run_in_process(workload.naive.main, capsys, *common, "--epochs", "2")
    assert outcome.final > 2 * workload.naive.TARGETS["tiny"]


def test_the_limit_reaches_the_target(workload, common, capsys) -> None:
    outcome = run_in_process(workload.limit.main, capsys, *common, *ENOUGH)
    assert outcome.reached
    assert outcome.metrics[-1] == pytest.approx(outcome.final, abs=2e-4)  # its own fast metric agrees


def test_the_limit_trains_what_naive_trains(workload, common, capsys, monkeypatch) -> None:
    in_order(monkeypatch, workload)
    naive = run_in_process(workload.naive.main, capsys, *common, "--epochs", "2")
    limit = run_in_process(workload.limit.main, capsys, *common, "--epochs", "2")
    assert limit.losses == pytest.approx(naive.losses, rel=0.01, abs=2e-5)
    assert limit.final == pytest.approx(naive.final, abs=2e-3)


def test_resident_rows_match_the_cycles(workload, folder: Path) -> None:
    settings = replace(workload.naive.defaults("tiny"), batch_size=1)
    campaign = workload.data.SIZES["tiny"]
    train, valid = workload.naive.build_datasets(folder, settings)
    assert len(train) == campaign.train_cycles * campaign.rows
    assert len(valid) == campaign.valid_cycles * campaign.rows
    assert train[0][0].shape == (len(workload.naive.FEATURES),)

"""A small CNN finds leaks in mel segments, and broken training shows in the F1 of the segments."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from once import made_once
from workload_modules import Outcome, outcome_of, run_in_process, run_script

NAME = "leak"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def naive_run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    """One honest run, as a user starts it, shared by the tests that only look at it."""

    def train(out: Path) -> None:
        done = run_script(NAME, "naive.py", "--size", "tiny", "--out", str(out), data_root=folder.parents[1])
        (out / "printed.txt").write_text(done.stdout)

    out = made_once(tmp_path_factory, f"{NAME}-naive", train)
    return outcome_of((out / "printed.txt").read_text()), out


def test_an_unknown_size_is_rejected_with_the_known_ones(workload, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"'huge'.*tiny, small, report"):
        workload.data.ensure("huge", root=tmp_path)


def test_the_files_have_the_shape_of_the_report_and_all_classes(workload, folder) -> None:
    shape = workload.data.SHAPES["tiny"]
    with h5py.File(folder / "train.h5") as file:
        assert file["mel"].shape == (shape.train_files, shape.long, shape.short, 32, 1)
        assert file["segment_label"].shape == (shape.train_files, shape.long, shape.short)
        assert set(np.unique(file["segment_label"])) == {0, 1, 2, 3}
        leaks = file["file_label"][:] == 3
        assert (file["segment_label"][:][leaks] == 3).all()
        assert np.isfinite(file["mel"][:]).all()


def test_every_mel_band_contains_energy(workload) -> None:
    filters = workload.data.audio.mel_matrix()
    assert (filters.sum(dim=0) > 0).all()
    centres = (filters / filters.sum(dim=0)).T @ torch.arange(len(filters), dtype=torch.float32)
    assert (centres.diff() > 0).all()


def test_the_report_sized_model_has_six_hundred_thousand_parameters(workload) -> None:
    model = workload.naive.build_model(workload.naive.defaults("report"))
    assert 0.5e6 < sum(parameter.numel() for parameter in model.parameters()) < 0.7e6


@pytest.mark.thorough
def test_naive_reaches_its_target(workload, naive_run) -> None:
    outcome, _ = naive_run
    assert outcome.reached
    assert outcome.losses[-1] < outcome.losses[0] / 3


@pytest.mark.thorough
def test_limit_trains_what_naive_trains(workload, naive_run, common, capsys) -> None:
    """With the same batches in the same order the losses agree to rounding, and so does the quality."""
    expected, _ = naive_run
    outcome = run_in_process(workload.limit.main, capsys, *common)
    assert outcome.reached
    assert outcome.losses == pytest.approx(expected.losses, rel=0.02)
    assert outcome.final == pytest.approx(expected.final, abs=0.05)


@pytest.mark.thorough
def test_shuffled_labels_miss_the_target(workload, common, capsys, monkeypatch) -> None:
    build_datasets = workload.naive.build_datasets

    def with_shuffled_labels(folder: Path, settings):
        train, valid = build_datasets(folder, settings)
        flat = train.segment_label.reshape(-1)
        train.segment_label = np.random.default_rng(0).permutation(flat).reshape(train.segment_label.shape)
        return train, valid

    monkeypatch.setattr(workload.naive, "build_datasets", with_shuffled_labels)
    outcome = run_in_process(workload.naive.main, capsys, *common, "--epochs", "5")
    assert outcome.final < workload.naive.TARGETS["tiny"] - 0.15


@pytest.mark.thorough
def test_dropped_gradients_miss_the_target(workload, common, capsys, answering) -> None:
    answering(torch.optim.AdamW, step=None)
    outcome = run_in_process(workload.naive.main, capsys, *common, "--epochs", "1")
    assert outcome.final < workload.naive.TARGETS["tiny"] - 0.15


def test_a_resumed_run_ends_like_an_uninterrupted_one(workload, folder, tmp_path, capsys) -> None:
    common = ["--size", "tiny", "--device", "cpu", "--data", str(folder), "--out"]
    run_in_process(workload.naive.main, capsys, *common, str(tmp_path / "whole"), "--epochs", "2")
    run_in_process(workload.naive.main, capsys, *common, str(tmp_path / "parts"), "--epochs", "1")
    assert workload.naive.main([*common, str(tmp_path / "parts"), "--epochs", "2", "--resume"]) == 0
    assert "\nepoch 2 " in capsys.readouterr().out
    whole = torch.load(tmp_path / "whole" / "last.pt", weights_only=True)
    parts = torch.load(tmp_path / "parts" / "last.pt", weights_only=True)
    for name, weights in whole["model"].items():
        assert torch.equal(weights, parts["model"][name]), name
    for number, state in whole["optimizer"]["state"].items():
        assert torch.equal(state["exp_avg"], parts["optimizer"]["state"][number]["exp_avg"])


@pytest.mark.thorough
def test_limit_resumes_a_run_that_naive_began(workload, naive_run, common, tmp_path, capsys) -> None:
    _, out = naive_run
    begun = shutil.copytree(out, tmp_path / "begun")
    epochs = workload.naive.defaults("tiny").epochs
    arguments = [*common[:-1], str(begun), "--resume", "--epochs", str(epochs + 1)]
    assert workload.limit.main(arguments) == 0
    assert f"\nepoch {epochs + 1} " in capsys.readouterr().out


def test_resuming_without_a_run_says_what_to_do(workload, common) -> None:
    with pytest.raises(SystemExit, match="does not exist; run once without --resume first"):
        workload.naive.main([*common, "--resume"])
    with pytest.raises(SystemExit, match="add --out DIR"):
        workload.naive.main([*common[:-2], "--resume"])


def test_the_narrow_forward_computes_the_model(workload) -> None:
    model = workload.naive.build_model(workload.naive.defaults("tiny"))
    mel = torch.randn(7, 1, 32, 1)
    for ours, theirs in zip(workload.limit.narrow_forward(model, mel), model(mel), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_batched_evaluation_scores_like_one_file_at_a_time(workload, folder) -> None:
    naive, limit = workload.naive, workload.limit
    settings = naive.defaults("tiny")
    model = naive.build_model(settings)
    _, valid = naive.build_datasets(folder, settings)
    with torch.no_grad():
        model.leak_head.bias.fill_(-float(leak_logits_median(model, valid)))  # so that about half are found
    part = limit.load_resident(folder / "valid.h5", CPU)
    scores = limit.evaluate_resident(model, part, bfloat16=False)
    assert 0.1 < scores.segment_f1 < 0.9
    assert scores.segment_f1 == pytest.approx(naive.evaluate(model, valid, CPU, settings), abs=0.01)
    assert scores.file_f1 == pytest.approx(naive.evaluation.evaluate_file_level(model, valid, CPU, amp=False), abs=0.05)


def leak_logits_median(model: torch.nn.Module, valid) -> torch.Tensor:
    mel = torch.from_numpy(valid.mel()[:]).flatten(0, 2).unsqueeze(1)
    return (model(mel)[1] - model.leak_head.bias).median()


def test_f1_is_computed_correctly(workload) -> None:
    f1_score = workload.naive.evaluation.f1_score
    assert f1_score(8, 2, 2) == pytest.approx(0.8)
    assert f1_score(0, 0, 5) == 0.0
    assert f1_score(0, 0, 0) == 0.0


def test_workers_read_the_same_data(workload, folder) -> None:
    """Each worker opens the file itself, so an open handle never crosses a fork."""
    train, _ = workload.naive.build_datasets(folder, workload.naive.defaults("tiny"))
    expected = train[5][0]  # opens the file in this process first
    assert train.__getstate__()["file"] is None
    with h5py.File(folder / "train.h5") as file:
        mel = file["mel"][:].reshape(-1, 32, 1)
    assert np.array_equal(expected.numpy(), mel[5])

"""A small net reads two-grams from Bloom filters, and broken training shows in the Dice coefficient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from workload_modules import in_order, outcome_of, run_in_process, run_script, with_dropped_gradients

NAME = "bloom"


def test_a_filter_has_the_bits_of_its_two_grams_and_no_others(workload, folder: Path) -> None:
    people = workload.naive.load_people(folder)
    for person in people.head(50).itertuples():
        two_grams = workload.naive.extract_two_grams(person.given_name + person.surname + person.birth_date)
        bits = {bit for two_gram in two_grams for bit in workload.data.gram_bits(two_gram)}
        assert {place for place, bit in enumerate(person.bloomfilter) if bit == "1"} == bits


def test_names_and_dates_are_well_formed(workload, folder: Path) -> None:
    people = workload.naive.load_people(folder)
    assert people["given_name"].str.fullmatch("[a-z]{3,12}").all()
    assert people["surname"].str.fullmatch("[a-z]{3,12}").all()
    assert people["birth_date"].str.fullmatch("(0[1-9]|[12][0-9]|3[01])(0[1-9]|1[0-2])(19|20)[0-9]{2}").all()
    assert people["surname"].value_counts().iloc[0] > 3 * people["surname"].value_counts().median()


@pytest.mark.thorough
def test_the_script_as_a_user_runs_it_reaches_the_target(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    done = run_script(
        NAME, "naive.py", "--size", "tiny", "--out", str(out), "--device", "cpu", data_root=folder.parents[1]
    )
    outcome = outcome_of(done.stdout)
    assert outcome.reached
    assert outcome.losses[-1] < outcome.losses[0]
    assert (out / "best_model.pth").exists()


@pytest.mark.thorough
def test_a_run_repeats_exactly(workload, common, capsys) -> None:
    first = run_in_process(workload.naive.main, capsys, *common, "--epochs", "1")
    assert run_in_process(workload.naive.main, capsys, *common, "--epochs", "1") == first


@pytest.mark.thorough
def test_shuffled_labels_miss_the_target_clearly(workload, common, capsys, monkeypatch) -> None:
    build = workload.naive.build_datasets

    def shuffled(folder, settings):
        train, valid = build(folder, settings)
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(1)).tolist()
        train.label_tensors = [train.label_tensors[place] for place in order]
        return train, valid

    monkeypatch.setattr(workload.naive, "build_datasets", shuffled)
    outcome = run_in_process(workload.naive.main, capsys, *common)
    assert outcome.final < 0.6 * workload.naive.TARGETS["tiny"]


@pytest.mark.thorough
def test_dropped_gradients_miss_the_target_clearly(workload, common, capsys, monkeypatch) -> None:
    with_dropped_gradients(monkeypatch, workload.naive)
    outcome = run_in_process(workload.naive.main, capsys, *common, "--epochs", "2")
    assert outcome.final < 0.6 * workload.naive.TARGETS["tiny"]


def test_the_limit_reaches_the_target(workload, common, capsys) -> None:
    outcome = run_in_process(workload.limit.main, capsys, *common)
    assert outcome.reached
    assert outcome.metrics[-1] == pytest.approx(outcome.final, abs=2e-4)  # its own fast metric agrees


def test_the_limit_trains_what_naive_trains(workload, common, capsys, monkeypatch) -> None:
    in_order(monkeypatch, workload)
    naive = run_in_process(workload.naive.main, capsys, *common, "--epochs", "2")
    limit = run_in_process(workload.limit.main, capsys, *common, "--epochs", "2")
    assert limit.losses == pytest.approx(naive.losses, rel=0.01, abs=2e-5)
    assert limit.final == pytest.approx(naive.final, abs=2e-3)


def test_resident_people_match_the_naive_dataset(workload, folder: Path) -> None:
    naive_parts = workload.naive.build_datasets(folder, workload.naive.defaults("tiny"))
    for naive, resident in zip(naive_parts, workload.limit.load_people(folder), strict=True):
        assert torch.equal(resident.bits, torch.stack(naive.bit_tensors))
        assert torch.equal(resident.labels, torch.stack(naive.label_tensors))
        assert resident.uids.tolist() == naive.uids


def test_dice_counts_hits_and_false_alarms(workload) -> None:
    dice = workload.naive.dice
    assert dice({"an", "nn"}, {"an", "nn"}) == 1.0
    assert dice({"an"}, {"an", "nn", "na"}) == 0.5
    assert dice(set(), {"an"}) == 0.0

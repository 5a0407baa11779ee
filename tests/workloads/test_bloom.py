"""A small net reads two-grams out of Bloom filters; broken training shows in the Dice coefficient."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from workload_modules import Workload, load_workload, outcome_of, run_in_process, run_script

NAME = "bloom"


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


def test_a_filter_holds_the_bits_of_every_two_gram_and_no_other(workload, data_root: Path) -> None:
    people = workload.naive.load_people(workload.data.default_folder("tiny", root=data_root))
    for person in people.head(50).itertuples():
        two_grams = workload.naive.extract_two_grams(person.given_name + person.surname + person.birth_date)
        bits = {bit for two_gram in two_grams for bit in workload.data.gram_bits(two_gram)}
        assert {place for place, bit in enumerate(person.bloomfilter) if bit == "1"} == bits


def test_names_are_words_and_dates_are_dates(workload, data_root: Path) -> None:
    people = workload.naive.load_people(workload.data.default_folder("tiny", root=data_root))
    assert people["given_name"].str.fullmatch("[a-z]{3,12}").all()
    assert people["surname"].str.fullmatch("[a-z]{3,12}").all()
    assert people["birth_date"].str.fullmatch("(0[1-9]|[12][0-9]|3[01])(0[1-9]|1[0-2])(19|20)[0-9]{2}").all()
    assert people["surname"].value_counts().iloc[0] > 3 * people["surname"].value_counts().median()


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
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(1)).tolist()
        train.label_tensors = [train.label_tensors[place] for place in order]
        return train, valid

    monkeypatch.setattr(workload.naive, "build_datasets", shuffled)
    outcome = run_in_process(workload.naive.main, capsys, *common)
    assert outcome.final < 0.6 * workload.naive.TARGETS["tiny"]


def test_dropped_gradients_miss_the_target_clearly(workload, common, capsys, monkeypatch) -> None:
    build = workload.naive.build_model

    def numb(settings):
        model = build(settings)
        for parameter in model.parameters():
            parameter.register_hook(torch.zeros_like)
        return model

    monkeypatch.setattr(workload.naive, "build_model", numb)
    outcome = run_in_process(workload.naive.main, capsys, *common, "--epochs", "2")
    assert outcome.final < 0.6 * workload.naive.TARGETS["tiny"]


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


def test_resident_people_are_those_of_the_naive_dataset(workload, data_root: Path) -> None:
    folder = workload.data.default_folder("tiny", root=data_root)
    naive_parts = workload.naive.build_datasets(folder, workload.naive.defaults("tiny"))
    for naive, resident in zip(naive_parts, workload.limit.load_people(folder), strict=True):
        assert torch.equal(resident.bits, torch.stack(naive.bit_tensors))
        assert torch.equal(resident.labels, torch.stack(naive.label_tensors))
        assert resident.uids.tolist() == naive.uids


def test_dice_counts_what_was_found_and_what_was_made_up(workload) -> None:
    dice = workload.naive.dice
    assert dice({"an", "nn"}, {"an", "nn"}) == 1.0
    assert dice({"an"}, {"an", "nn", "na"}) == 0.5
    assert dice(set(), {"an"}) == 0.0

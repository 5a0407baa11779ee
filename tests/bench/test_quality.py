"""benchmarks/training/quality.py trains runs in parallel, saves each, and reports which reached their target."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from hotlap.bench import data, process, record, session
from hotlap.bench.data import Needs
from hotlap.bench.record import Choice
from tests.bench.benches import lines_of, run_of
from tests.bench.conftest import SURROUNDINGS

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def quality(monkeypatch, answering, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS / "training"))
    answering(data, make=tmp_path)
    monkeypatch.setattr(data, "needs", lambda place, workload, size: Needs(
        workload=workload, root=tmp_path, bytes_needed=0, memory_mb=1.0
    ))  # fmt: skip
    monkeypatch.setattr(session, "look", lambda device: (SURROUNDINGS, device))
    import quality

    yield quality
    sys.modules.pop("quality", None)


def options(tmp_path, *more):
    return ["leak", "bloom", "--arms", "engine,naive", "--size", "tiny", "--device", "cpu",
            "--out", str(tmp_path / "q.json"), *more]  # fmt: skip


def trained(final):
    """Stands in for process.run without a process; `final` gives the quality by workload, arm and seed."""
    return lambda arm, key, folder, on_line: run_of(*key, lines_of([1.0, 1.0], [0.5, final(key)]))


def test_arms_named_last_are_trained_last(quality):
    choice = Choice(workloads=("a", "b"), arms=("x", "y"), size="tiny", device="cpu", seeds=3, epochs=None)
    keys = quality.order(choice, 1)
    assert keys[:4] == [("a", "x", 1), ("b", "x", 1), ("a", "x", 2), ("b", "x", 2)]
    assert [arm for _, arm, _ in keys] == ["x"] * 4 + ["y"] * 4


def test_every_run_is_saved_and_success_means_all_reached_the_target(quality, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(process, "run", trained(lambda key: 0.1 + key[2] / 100))
    assert quality.main(options(tmp_path, "--at-once", "3")) == 0
    result = record.load(tmp_path / "q.json")
    assert {run.key for run in result.runs} == {
        (name, arm, seed) for name in ("leak", "bloom") for arm in ("engine", "naive") for seed in range(3)
    }
    assert all(run.peak_device_mb is None for run in result.runs), "others use the device at the same time"
    assert "rmse 0.1000, 0.1100, 0.1200: 3 of 3 reached 0.25" in capsys.readouterr().out


def test_a_run_that_misses_its_target_is_a_failure(quality, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(process, "run", trained(lambda key: 0.3 if key == ("bloom", "naive", 2) else 0.1))
    assert quality.main(options(tmp_path)) == 1
    assert "bloom          naive      rmse 0.1000, 0.1000, 0.3000: 2 of 3 reached 0.25" in capsys.readouterr().out


def test_no_run_starts_when_time_is_up(quality, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "run", trained(lambda key: 0.1))
    quality.main(options(tmp_path, "--minutes", "0"))
    assert record.load(tmp_path / "q.json").runs == ()


def test_rejects_an_existing_file(quality, tmp_path, capsys):
    (tmp_path / "q.json").write_text("{}")
    assert quality.main(options(tmp_path)) != 0
    assert "already exists" in capsys.readouterr().err


def test_an_interruption_starts_nothing_more_and_keeps_finished_runs(quality, tmp_path, monkeypatch, capsys):
    begun = []

    def run(arm, key, folder, on_line):
        begun.append(key)
        if len(begun) == 2:
            raise KeyboardInterrupt
        while len(begun) > 2:
            on_line(0, 0.0)  # what a running process calls, which ends it
            time.sleep(0.01)
        return run_of(*key, lines_of([1.0, 1.0], [0.5, 0.1]))

    monkeypatch.setattr(process, "run", run)
    assert quality.main(options(tmp_path, "--at-once", "2")) == 130
    assert "interrupted; finished runs are saved" in capsys.readouterr().err
    assert len(begun) <= 4
    assert record.load(tmp_path / "q.json").runs[0].ended == "trained"


def test_the_file_contains_the_command_to_type(quality, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "run", trained(lambda key: 0.1))
    quality.main(options(tmp_path, "--first-seed", "2", "--at-once", "3"))
    assert record.load(tmp_path / "q.json").command == (
        "python benchmarks/training/quality.py leak bloom --arms engine,naive --size tiny --seeds 3 --first-seed 2 "
        "--at-once 3 --device cpu"
    )


@pytest.mark.parametrize("more", [("--first-seed", "3"), ("--at-once", "0")])
def test_rejects_options_that_would_train_nothing(quality, tmp_path, capsys, more):
    with pytest.raises(SystemExit):
        quality.main(options(tmp_path, *more))
    assert "--first-seed must be at least 0" in capsys.readouterr().err

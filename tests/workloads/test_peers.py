"""Lightning and Accelerate train what naive.py trains, print what every arm prints, and name a missing package."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from harness import warm
from workload_modules import (
    NAMES,
    WORKLOADS,
    Outcome,
    fresh_imports,
    load_workload,
    outcome_of,
    run_in_process,
    without_shuffling,
)

FRAMEWORKS = ("lightning", "accelerate")
REPOSITORY = WORKLOADS.parent


@contextlib.contextmanager
def peer_module(framework: str, name: str) -> Iterator[ModuleType]:
    """The script of a framework, which imports naive.py of one workload when it runs."""
    torch.set_num_threads(1)
    with fresh_imports(name):
        yield importlib.import_module(f"peer_{framework}")


def arguments_for(name: str, data_root: Path, out: Path) -> list[str]:
    """The arguments for one epoch, or for two where the first has a frozen backbone."""
    folder = load_workload(name).data.ensure("tiny", root=data_root)
    epochs = "2" if name == "banknotes" else "1"
    common = ["--size", "tiny", "--epochs", epochs, "--workers", "0", "--device", "cpu"]
    return [*common, "--data", str(folder), "--out", str(out)]


def run_peer(framework: str, name: str, capsys, *arguments: str) -> Outcome:
    with peer_module(framework, name) as module:
        return run_in_process(module.main, capsys, name, *arguments)


QUICK = ("battery_fnn", "leak")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough) for name in NAMES]
)
def test_peers_train_what_naive_trains(name: str, data_root: Path, tmp_path: Path, capsys) -> None:
    """The number of samples is the same, and in another order of samples the mean loss is nearly the same."""
    arguments = arguments_for(name, data_root, tmp_path)
    naive = run_in_process(load_workload(name).naive.main, capsys, *arguments)
    for framework in FRAMEWORKS:
        outcome = run_peer(framework, name, capsys, *arguments)
        assert outcome.samples == naive.samples
        assert outcome.losses == pytest.approx(naive.losses, rel=0.2)
        assert outcome.settings == {"precision": "32-true", "compile": "no", "workers": "0"}
        assert (tmp_path / "model.pt").exists()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_losses_agree_in_the_same_order_of_samples(
    framework: str, data_root: Path, tmp_path: Path, capsys, monkeypatch
):
    arguments = [*arguments_for("battery_fnn", data_root, tmp_path), "--epochs", "2"]
    workload = load_workload("battery_fnn")
    without_shuffling(monkeypatch, workload.naive)
    naive = run_in_process(workload.naive.main, capsys, *arguments)
    with peer_module(framework, "battery_fnn") as module:
        without_shuffling(monkeypatch, module.peer)
        outcome = run_in_process(module.main, capsys, "battery_fnn", *arguments)
    assert outcome.losses == pytest.approx(naive.losses, rel=0.01, abs=2e-5)
    assert outcome.final == pytest.approx(naive.final, abs=2e-3)


@pytest.mark.thorough
def test_the_script_runs_from_any_folder_with_workers(data_root: Path, tmp_path: Path) -> None:
    arguments = [*arguments_for("battery_fnn", data_root, tmp_path), "--workers", "1"]
    command = [sys.executable, str(WORKLOADS / "peer_lightning.py"), "battery_fnn", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    outcome = outcome_of(done.stdout)
    assert outcome.settings["workers"] == "1"
    assert len(outcome.losses) == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_missing_framework_is_reported_with_the_command_to_type(framework: str, tmp_path: Path) -> None:
    script = WORKLOADS / f"peer_{framework}.py"
    without = tmp_path / "without.py"
    without.write_text(
        "import runpy, sys\n"
        f"sys.modules[{framework!r}] = None\n"
        f"sys.path.insert(0, {str(WORKLOADS)!r})\n"
        f"sys.argv = ['peer', 'battery_fnn', '--size', 'tiny']\n"
        f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
    )
    done = warm([sys.executable, str(without)], tmp_path)
    assert done.code == 3
    assert done.stdout == ""
    assert done.stderr == f"this arm needs {framework}; type: pip install 'hotlap[peers]'\n"


@pytest.fixture
def peer() -> Iterator[ModuleType]:
    with fresh_imports("banknotes"):
        yield importlib.import_module("peer")


def test_every_workload_has_a_recipe_and_settings_for_both_devices(peer) -> None:
    assert set(peer.RECIPES) == set(peer.FASTEST["cpu"]) == set(peer.FASTEST["cuda"]) == set(NAMES)


def test_phases_freeze_and_schedule_as_in_naive(peer, data_root: Path) -> None:
    naive = peer.load_naive("banknotes")
    settings = naive.defaults("tiny")
    folder = naive.data.ensure("tiny", root=data_root)
    task = peer.Task("banknotes", settings, folder, torch.device("cpu"), peer.Speed("32", workers=0))
    model = task.model()
    for phase, own in zip(task.phases(), naive.phases(settings), strict=True):
        optimizer = task.optimizer(model, phase)
        assert all(parameter.requires_grad != own.backbone_frozen for parameter in model.backbone.parameters())
        trained = sum(len(group["params"]) for group in optimizer.param_groups)
        assert trained == sum(parameter.requires_grad for parameter in model.parameters())
        assert all(group["fused"] for group in optimizer.param_groups)
        schedule = task.schedule(optimizer, phase)
        for epoch in own.epochs:
            assert optimizer.param_groups[0]["lr"] == pytest.approx(naive.learning_rate_at(own, epoch))
            optimizer.step()
            schedule.step()


def test_options_override_the_table(peer) -> None:
    parser = peer.build_parser("Lightning")
    chosen = parser.parse_args("leak --device cuda --precision 32 --compile --workers 3".split())
    assert peer.speed_from(chosen) == peer.Speed("32", compile=True, workers=3)
    unnamed = peer.speed_from(parser.parse_args("leak --device cuda".split()))
    table = peer.FASTEST["cuda"]["leak"]
    assert (unnamed.precision, unnamed.compile) == (table.precision, table.compile)


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 1), (16, 14)])
def test_workers_leave_room_for_the_process_they_feed(peer, monkeypatch, cores: int, workers: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    assert peer.workers_from_cores() == workers


@pytest.mark.thorough
def test_the_sweep_records_every_epoch_and_continues_after_a_failure(data_root: Path, tmp_path: Path) -> None:
    out = tmp_path / "settings.json"
    script = REPOSITORY / "benchmarks" / "training" / "peer_settings.py"
    options = "--workloads battery_fnn --frameworks accelerate --size tiny --epochs 2 --precision 32 --compile no"
    command = [sys.executable, str(script), *options.split(), "--workers=-1,1", "--out", str(out)]
    environment = {**os.environ, "HOTLAP_DATA": str(data_root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    broken, good = json.loads(out.read_text())["results"]
    assert "num_workers" in broken["error"]
    assert good["error"] is None
    assert good["samples"] == 9600
    assert len(good["epoch_seconds"]) == 2
    assert "battery_fnn   accelerate" in done.stdout.split("fastest:")[1]


def test_the_table_of_the_sweep_shows_what_was_faster_and_what_failed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks" / "render"))
    import render_peers

    def result(framework: str, precision: str, seconds: list[float], error: str | None = None) -> dict[str, object]:
        combination = {"workload": "leak", "framework": framework, "precision": precision, "compile": False}
        return {"combination": combination, "samples": 900, "epoch_seconds": seconds, "error": error}

    good = result("accelerate", "32", [9.0, 3.0, 1.0, 3.0])
    results = [good, result("accelerate", "bf16", [], "OSError: no"), result("lightning", "32", [], "not done; more")]
    machine = {"gpu": "a GPU", "cores": 2, "processor": "x"}
    folder = tmp_path / "results" / "there"
    folder.mkdir(parents=True)
    (folder / "1-peer-settings.json").write_text(json.dumps({"machine": machine, "size": "tiny", "results": results}))
    table = render_peers.section(tmp_path)[1]
    assert "| a GPU | leak, tiny | accelerate | 300 |  | (OSError) |  | [1-peer-settings.json]" in table
    assert "lightning" not in table
    assert render_peers.section(tmp_path / "results") == []

"""hotlap doctor tells what works on a machine and with a torch, what does not, and what to do about it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hotlap.workflows import doctor
from hotlap.workflows.doctor import State

CPU = {"python": "3.12.1", "executable": "/venv/bin/python", "torch": "2.11.0+cpu", "cuda": None, "hip": None,
       "threads": 1, "triton": True, "compiler": "/usr/bin/g++", "gpus": [], "bf16": True}  # fmt: skip
GPU = {**CPU, "torch": "2.11.0+cu128", "cuda": "12.8", "gpus": ["H200"], "capabilities": [(9, 0)],
       "architectures": ["sm_80", "sm_90"]}  # fmt: skip


@pytest.fixture
def root(tmp_path, monkeypatch, answering) -> Path:
    """The file system of a machine without limits; nothing else runs on it."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 33554432 kB\n")
    monkeypatch.setenv("HOTLAP_DIR", str(tmp_path / "kept"))
    answering(doctor, _busy_share=0.0)
    return tmp_path


@pytest.fixture
def checked(root, monkeypatch):
    """The checks of a machine whose interpreter answers this, by name."""

    def check(answer: dict[str, object]) -> dict[str, doctor.Check]:
        monkeypatch.setattr(doctor, "_asked", lambda python: answer)
        return {check.name: check for check in doctor.doctor("python", root)}

    return check


def test_this_interpreter_is_asked_in_a_process_of_its_own(typed):
    code, out, _ = typed("doctor", sys.executable, "--json")
    checks = {check["name"]: check for check in json.loads(out)}
    assert code == 0
    assert checks["torch"]["state"] == "good"
    assert checks["torch"]["found"].endswith("built for CPUs only") or "CUDA" in checks["torch"]["found"]


def test_an_interpreter_that_does_not_start_is_a_problem(typed):
    code, out, _ = typed("doctor", "nowhere/python")
    assert code == 1
    assert "problem  Python" in out
    assert "name another: hotlap doctor PYTHON" in out


@pytest.mark.parametrize(
    ("change", "name", "advice"),
    [
        ({"python": "3.9.2"}, "Python", "hotlap needs Python 3.10 or newer"),
        ({"torch": "2.5.1"}, "torch", "hotlap needs torch 2.6 or newer"),
    ],
)
def test_what_hotlap_cannot_work_with_is_a_problem(change, name, advice, checked):
    assert checked({**CPU, **change})[name].state is State.PROBLEM
    assert checked({**CPU, **change})[name].advice == advice


def test_missing_torch_says_where_to_install_it(checked):
    found = checked({"python": "3.12.1", "executable": "/venv/bin/python", "error": "ModuleNotFoundError: torch"})
    assert found["torch"].state is State.PROBLEM
    assert "/venv/bin/python -m pip install torch" in found["torch"].advice
    assert "GPU" not in found


def test_a_machine_as_it_should_be_has_nothing_to_repair(checked, answering):
    answering(doctor, _by_nvml=("570.1", ""))
    found = checked(GPU)
    assert {name for name, check in found.items() if check.state is State.PROBLEM} == set()
    assert found["GPU"].found == "1 × H200, driver 570.1"
    assert "not here" not in found


def test_without_a_gpu_it_names_what_needs_one(checked):
    assert "cuda-graphs" in checked(CPU)["not here"].found
    assert "they need a GPU" in checked(CPU)["not here"].found


def test_a_gpu_that_torch_was_not_built_for_is_told(checked, answering):
    answering(doctor, may_have_gpu=True)
    assert "built for CPUs only" in checked(CPU)["GPU"].found
    answering(doctor, _by_nvml=("570.1", ""))
    assert "no kernels for sm_120" in checked({**GPU, "capabilities": [(12, 0)]})["GPU"].found
    answering(doctor, _by_nvml=("570.1", "80 % busy"))
    assert "in use: 80 % busy" in checked(GPU)["GPU"].found


def test_a_busy_machine_a_changing_clock_and_limits_are_told(checked, root, answering):
    answering(doctor, _busy_share=0.5)
    folder = root / "sys/devices/system/cpu/cpu0/cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_governor").write_text("powersave\n")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/memory.max").write_text(f"{2 << 30}\n")
    (root / "sys/fs/cgroup/memory.current").write_text(f"{1 << 30}\n")
    found = checked({**CPU, "threads": 512})
    assert found["load"].state is State.NOTE
    assert found["clock"].found == "frequency governor powersave"
    assert "1.0 GiB free of 2.0 GiB, limited by a control group" in found["memory"].found
    assert "export OMP_NUM_THREADS=" in found["cores"].advice


def test_little_shared_memory_is_told(checked, root, constants):
    (root / "dev/shm").mkdir(parents=True)
    constants(doctor, LITTLE_SHARED=1 << 60)
    assert "--shm-size=8g" in checked(CPU)["shared memory"].advice

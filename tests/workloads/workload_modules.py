"""How the tests reach a workload: its modules in this process, or its scripts in another."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch.utils.data import DataLoader

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"
NAMES = ("battery_lstm", "battery_fnn", "bloom", "banknotes", "leak")


@dataclass(frozen=True)
class Workload:
    data: ModuleType
    naive: ModuleType
    limit: ModuleType
    cache: ModuleType
    fast: ModuleType


@dataclass(frozen=True)
class Outcome:
    """The parsed output of a training run; only Lightning and Accelerate print `settings`."""

    samples: tuple[int, int]  # trained per epoch, and validated
    losses: list[float]
    metrics: list[float]
    final: float
    reached: bool
    settings: dict[str, str]


def load_workload(name: str) -> Workload:
    """Import a workload as its scripts do, by plain names, and leave no such name behind: `data`, `naive`
    and `limit` exist once per workload."""
    with fresh_imports(name):
        return Workload(*(importlib.import_module(part) for part in ("data", "naive", "limit", "cache", "fast")))


@contextlib.contextmanager
def fresh_imports(name: str) -> Iterator[None]:
    """Import the modules of one workload by plain names, and restore all modules afterwards."""
    folder = WORKLOADS / name
    path_before, modules_before = list(sys.path), _workload_modules()
    for name in modules_before:
        del sys.modules[name]
    plain_names = {file.stem for file in (*folder.glob("*.py"), *WORKLOADS.glob("*.py"))}
    hidden = {name: sys.modules.pop(name) for name in plain_names if name in sys.modules}
    sys.path[:0] = [str(folder), str(WORKLOADS)]
    try:
        yield
    finally:
        for name in _workload_modules():
            del sys.modules[name]
        sys.modules.update({**hidden, **modules_before})
        sys.path[:] = path_before


def _workload_modules() -> dict[str, ModuleType]:
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name != "__main__" and file and Path(file).is_relative_to(WORKLOADS):
            found[name] = module
    return found


def run_script(name: str, script: str, *arguments: str, data_root: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOTLAP_DATA": str(data_root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(WORKLOADS / name / script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)


def outcome_of(printed: str) -> Outcome:
    """Parse the lines that every training script prints; an unexpected line is an error."""
    lines = printed.strip().splitlines()
    settings = re.fullmatch(r"settings (\S+=\S+(?: \S+=\S+)*)", lines[0])
    samples, *epochs, last = lines[1:] if settings else lines
    counts = re.fullmatch(r"train (\d+) samples  valid (\d+) samples", samples)
    parsed = [re.fullmatch(r"epoch (\d+)  loss (\S+)  \w+ (\S+)  seconds (\S+)", line) for line in epochs]
    final = re.fullmatch(r"final \w+ (\S+) target \S+ (reached|missed)", last)
    assert counts is not None, printed
    assert parsed, printed
    assert all(parsed), printed
    assert final is not None, printed
    assert all(float(line[4]) > 0 for line in parsed), printed
    numbers = [int(line[1]) for line in parsed]
    assert numbers == list(range(numbers[0], numbers[0] + len(parsed)))
    return Outcome(
        samples=(int(counts[1]), int(counts[2])),
        losses=[float(line[2]) for line in parsed],
        metrics=[float(line[3]) for line in parsed],
        final=float(final[1]),
        reached=final[2] == "reached",
        settings=dict(pair.split("=", 1) for pair in settings[1].split()) if settings else {},
    )


def run_in_process(main: Callable[[list[str]], int], capsys, *arguments: str) -> Outcome:
    capsys.readouterr()
    assert main(list(arguments)) == 0
    return outcome_of(capsys.readouterr().out)


def without_shuffling(monkeypatch, module: ModuleType) -> None:
    """Make the loaders of the module take the samples in the order of the file."""
    monkeypatch.setattr(
        module, "DataLoader", lambda *parts, **options: DataLoader(*parts, **{**options, "shuffle": False})
    )


def in_order(monkeypatch, workload: Workload) -> None:
    """Make naive.py and limit.py take the samples in the order of the file."""
    without_shuffling(monkeypatch, workload.naive)
    monkeypatch.setattr(
        workload.limit, "epoch_order", lambda samples, generator, device: torch.arange(samples, device=device)
    )


def with_dropped_gradients(monkeypatch, naive: ModuleType) -> None:
    build = naive.build_model

    def numb(settings):
        model = build(settings)
        for parameter in model.parameters():
            parameter.register_hook(torch.zeros_like)
        return model

    monkeypatch.setattr(naive, "build_model", numb)

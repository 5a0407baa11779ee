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

WORKLOADS = Path(__file__).resolve().parents[2] / "workloads"


@dataclass(frozen=True)
class Workload:
    data: ModuleType
    naive: ModuleType
    limit: ModuleType
    cache: ModuleType


@dataclass(frozen=True)
class Outcome:
    """What a training run printed."""

    losses: list[float]
    metrics: list[float]
    final: float
    reached: bool


def load_workload(name: str) -> Workload:
    """Import a workload as its scripts do, by plain names, and leave no such name behind: `data`, `naive`
    and `limit` exist once per workload."""
    with _fresh_imports(WORKLOADS / name):
        return Workload(*(importlib.import_module(part) for part in ("data", "naive", "limit", "cache")))


@contextlib.contextmanager
def _fresh_imports(folder: Path) -> Iterator[None]:
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
    """Reads the lines every training script prints; an unexpected line is an error."""
    *epochs, last = printed.strip().splitlines()
    parsed = [re.fullmatch(r"epoch (\d+)  loss (\S+)  \w+ (\S+)  seconds (\S+)", line) for line in epochs]
    final = re.fullmatch(r"final \w+ (\S+) target \S+ (reached|missed)", last)
    assert all(parsed), printed
    assert final is not None, printed
    assert [int(line[1]) for line in parsed] == list(range(1, len(parsed) + 1))
    losses, metrics = [float(line[2]) for line in parsed], [float(line[3]) for line in parsed]
    return Outcome(losses, metrics, float(final[1]), final[2] == "reached")


def run_in_process(main: Callable[[list[str]], int], capsys, *arguments: str) -> Outcome:
    capsys.readouterr()
    assert main(list(arguments)) == 0
    return outcome_of(capsys.readouterr().out)

"""Fixtures for the tests of one workload, which a module names in `NAME`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from once import shared_folder
from workload_modules import Workload, load_workload


@pytest.fixture(scope="module")
def workload(request: pytest.FixtureRequest) -> Workload:
    torch.set_num_threads(1)
    return load_workload(request.module.NAME)


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared cache, as users share it: all test processes read it at once, so no test may write to its data."""
    root = shared_folder(tmp_path_factory) / "workload-data"
    root.mkdir(exist_ok=True)
    return root


@pytest.fixture(scope="module")
def folder(workload: Workload, data_root: Path) -> Path:
    return workload.data.ensure("tiny", seed=0, root=data_root)


@pytest.fixture
def common(folder: Path, tmp_path: Path) -> list[str]:
    """Arguments that keep a run in this process: no workers, the data of the tests, the CPU."""
    return ["--size", "tiny", "--workers", "0", "--device", "cpu", "--data", str(folder), "--out", str(tmp_path)]

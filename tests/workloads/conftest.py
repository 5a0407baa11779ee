"""What the tests of one workload share; a module names its workload in `NAME`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from workload_modules import Workload, load_workload


@pytest.fixture(scope="module")
def workload(request: pytest.FixtureRequest) -> Workload:
    torch.set_num_threads(1)
    return load_workload(request.module.NAME)


@pytest.fixture(scope="module")
def folder(workload: Workload, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workload.data.ensure("tiny", seed=0, root=tmp_path_factory.mktemp("data"))


@pytest.fixture
def common(folder: Path, tmp_path: Path) -> list[str]:
    """Arguments that keep a run in this process: no workers, the tests' own data, the CPU."""
    return ["--size", "tiny", "--workers", "0", "--device", "cpu", "--data", str(folder), "--out", str(tmp_path)]

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.patch.subprocesses import TorchProcesses


@pytest.fixture(scope="session")
def torch_processes() -> Iterator[TorchProcesses]:
    processes = TorchProcesses()
    yield processes
    processes.close()


@pytest.fixture
def run_torch(torch_processes: TorchProcesses) -> Callable[[str], str]:
    return torch_processes.run

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Two test processes share two cores: more threads each, in them or in what they start, would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What hotlap keeps goes here and not into the home of whoever runs the tests.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="hotlap-tests-")
os.environ["HOTLAP_DIR"] = ""

sys.path.insert(0, str(Path(__file__).parent))
os.environ["PYTHONPATH"] = os.pathsep.join(  # for every Python that the tests start
    [str(Path(__file__).parent / "quick"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

import pytest
from harness import Ran, profile, profiled_once, python
from patching import answering, command_line, constants, spied
from warm import one_folder_for_all, warmed

__all__ = ["answering", "command_line", "constants", "spied"]

WINDOW = ("--no-ceiling", "--steps", "20", "--warmup", "3")


@pytest.fixture(scope="session", autouse=True)
def state_removed() -> Iterator[None]:
    yield
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


@pytest.fixture(scope="session")
def traced_run(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A program without faults that trains for ever, ended after the window and a trace."""
    command = warmed(python("endless.py", "--out", "finally.txt"))
    return profiled_once(tmp_path_factory, "traced", lambda folder: profile(command, folder, *WINDOW, "--trace"))


@pytest.fixture(scope="session")
def worker_run(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The same, loading with a worker, ended after the window."""
    command = warmed(python("endless.py", "--workers", "1", "--out", "finally.txt"))
    return profiled_once(tmp_path_factory, "worker", lambda folder: profile(command, folder, *WINDOW))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the thorough tests too")
    parser.addoption("--commit-views", action="store_true", help="write tests/report/committed anew")


def pytest_configure(config: pytest.Config) -> None:
    one_folder_for_all()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts us in the background ignores it


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all"):
        return
    thorough = [item for item in items if item.get_closest_marker("thorough")]
    if thorough:
        config.hook.pytest_deselected(items=thorough)
        items[:] = [item for item in items if item not in set(thorough)]


def pytest_collection_finish() -> None:
    """What is there before the first test is looked through by no collection: there are a million objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def thawed() -> Iterator[None]:
    """For tests of what leaves a collector alone that someone else has frozen."""
    gc.unfreeze()
    yield
    gc.freeze()

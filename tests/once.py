"""Folders that several tests only read are made once, even when the tests run in several processes."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

DONE = "done"


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """One folder for all test processes of this run of pytest."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first caller fills. Tests share it, so a test that changes it must work on a copy."""
    folder = shared_folder(factory) / f"once-{name}"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / DONE).exists():
            shutil.rmtree(folder, ignore_errors=True)  # left by a caller that failed
            folder.mkdir()
            make(folder)
            (folder / DONE).touch()
    return folder

"""Runs programs with and without hotlap, as a user would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from once import made_once

PROGRAMS = Path(__file__).parent / "programs"
HOTLAP = [sys.executable, "-m", "hotlap"]


@dataclass(frozen=True)
class Ran:
    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def run(self) -> Path:
        return max((self.folder / "runs").iterdir())

    def record(self, name: str) -> dict[str, Any]:
        return json.loads((self.run / f"{name}.json").read_text())

    @property
    def observation(self) -> dict[str, Any]:
        return self.record("observation")

    @property
    def diagnosis(self) -> dict[str, Any]:
        return self.record("diagnosis")


def environment(**more: str) -> dict[str, str]:
    """Our errors raise, and neither thread count nor hash seed is left to chance."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOTLAP")}
    return {**clean, "HOTLAP_STRICT": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **more}


def bare(command: list[str], cwd: Path, **more: str) -> Ran:
    done = subprocess.run(command, cwd=cwd, env=environment(**more), capture_output=True, text=True, timeout=300)
    return Ran(done.returncode, done.stdout, done.stderr, cwd)


def profile(command: list[str], cwd: Path, *options: str, **more: str) -> Ran:
    folder = cwd / "kept"
    whole = [*HOTLAP, "profile", "--run-dir", str(folder), *options, *command]
    done = subprocess.run(whole, cwd=cwd, env=environment(**more), capture_output=True, text=True, timeout=300)
    return Ran(done.returncode, done.stdout, done.stderr, folder)


def profiled_once(factory: pytest.TempPathFactory, name: str, run: Callable[[Path], Ran]) -> Ran:
    """A run that several tests look at and none changes."""

    def make(folder: Path) -> None:
        ran = run(folder)
        (folder / "ran.json").write_text(json.dumps([ran.code, ran.stdout, ran.stderr]))

    folder = made_once(factory, name, make)
    return Ran(*json.loads((folder / "ran.json").read_text()), folder / "kept")


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, str(PROGRAMS / program), *arguments]


def printed_losses(stdout: str) -> list[float]:
    return [float(value) for value in re.findall(r"^step \d+ loss (\S+)$", stdout, re.MULTILINE)]

"""Run programs with and without hotlap, as a user would."""

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
from warm import warmed

PROGRAMS = Path(__file__).parent / "programs"
HOTLAP = [sys.executable, "-m", "hotlap"]
WARM_HOTLAP = [sys.executable, str(Path(__file__).parent / "start_hotlap.py")]
TWO_RANKS = ["--nproc-per-node", "2", "--standalone"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", *TWO_RANKS]
OWN_PYTHON = ("broken_dataset", "leaves_open", "looks_around")  # about how a process ends, its state, or an error


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
    """Errors of hotlap raise, and the thread count is fixed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOTLAP")}
    path = os.pathsep.join(filter(None, (more.pop("PYTHONPATH", None), clean.get("PYTHONPATH"))))
    own = {"HOTLAP_STRICT": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}
    return {**clean, **own, **more}


def bare(command: list[str], cwd: Path, **more: str) -> Ran:
    done = subprocess.run(command, cwd=cwd, env=environment(**more), capture_output=True, text=True, timeout=300)
    return Ran(done.returncode, done.stdout, done.stderr, cwd)


def warm(command: list[str], cwd: Path, **more: str) -> Ran:
    """Like bare, in a process that has already imported torch; for a script that does not notice and does not fail."""
    return bare(warmed(command), cwd, **more)


def profile(command: list[str], cwd: Path, *options: str, **more: str) -> Ran:
    folder = cwd / "kept"
    hotlap = HOTLAP if "HOTLAP_GRACE" in more else warmed(WARM_HOTLAP)  # which is read when hotlap is imported
    whole = [*hotlap, "profile", "--run-dir", str(folder), *options, *command]
    done = subprocess.run(whole, cwd=cwd, env=environment(**more), capture_output=True, text=True, timeout=300)
    return Ran(done.returncode, done.stdout, done.stderr, folder)


def profiled_once(factory: pytest.TempPathFactory, name: str, run: Callable[[Path], Ran]) -> Ran:
    """A run that several tests read and no test changes."""

    def make(folder: Path) -> None:
        ran = run(folder)
        (folder / "ran.json").write_text(json.dumps([ran.code, ran.stdout, ran.stderr]))

    folder = made_once(factory, name, make)
    return Ran(*json.loads((folder / "ran.json").read_text()), folder / "kept")


def alone(factory: pytest.TempPathFactory, command: list[str], **more: str) -> Ran:
    """The same command without hotlap, run once for all tests."""
    words = [*(Path(word).name for word in command[1:]), *sorted(f"{name}={value}" for name, value in more.items())]
    name = "alone-" + re.sub(r"[^\w=.]+", "-", " ".join(words))
    more["PYTHONPATH"] = str(PROGRAMS)

    return profiled_once(factory, name, lambda folder: bare(warmed_if_possible(command), folder, **more))


def warmed_if_possible(command: list[str]) -> list[str]:
    """The command in processes that have already imported torch, unless it notices."""
    if command[: len(TORCHRUN)] == TORCHRUN:
        return [*warmed_torchrun("--no-python"), *warmed([sys.executable, *command[len(TORCHRUN) :]])]
    is_program = command[0] == sys.executable and Path(command[1]).parent == PROGRAMS
    return warmed(command) if is_program and Path(command[1]).stem not in OWN_PYTHON else command


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, str(PROGRAMS / program), *arguments]


def warmed_torchrun(*options: str) -> list[str]:
    """The command to use instead of `torchrun`, which then starts its ranks itself, or warm ones with --no-python."""
    return warmed([*python("torchrun.py"), *TWO_RANKS, *options])


def printed_losses(stdout: str) -> list[float]:
    return [float(value) for value in re.findall(r"^step \d+ loss (\S+)$", stdout, re.MULTILINE)]

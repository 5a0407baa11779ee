"""The workloads' data, made before anything is timed: one data seed, so that all arms and seeds train on the same."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from hotlap.bench import spawn
from hotlap.errors import DataNotMade, NotEnoughRoom

SEED = "0"
GIB = 1024**3
MIB = 1024**2
PROCESS_MB = 700  # an interpreter with torch, before any data
OnWait = Callable[[str, float], None]

# Asks a generator what it would need: its `ensure` comes to `cache.make_once`, which here makes nothing and tells.
QUESTION = """
import json, sys
sys.path.insert(0, sys.argv[1])
import data
import cache
def answer(folder, build, bytes_needed):
    memory = getattr(data, "MEMORY_MB", {}).get(sys.argv[2])
    missing = 0 if cache.is_complete(folder) else bytes_needed
    told = {"root": str(cache.data_root()), "size": bytes_needed, "missing": missing, "memory_mb": memory}
    print(json.dumps(told))
    return folder
cache.make_once = answer
data.ensure(sys.argv[2], seed=int(sys.argv[3]))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    workload: str
    root: Path
    bytes_needed: int  # on disk; 0 when the data is there
    memory_mb: float  # to train on it


def needs(place: Path, workload: str, size: str) -> Needs:
    question = [sys.executable, "-c", QUESTION, str(place / workload), size, SEED]
    done = subprocess.run(question, capture_output=True, text=True)
    if done.returncode != 0:
        raise DataNotMade(f"the generator of {workload} cannot start: {_last(done.stderr, done.returncode)}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    # Where the workload does not say, the data twice beside torch is the least any arm needs.
    memory = told["memory_mb"] or PROCESS_MB + 2 * told["size"] / MIB
    return Needs(workload=workload, root=Path(told["root"]), bytes_needed=int(told["missing"]), memory_mb=float(memory))


def require_room(asked: Sequence[Needs], size: str) -> None:
    if not asked:
        return
    root, total = asked[0].root, sum(one.bytes_needed for one in asked)
    free = shutil.disk_usage(_existing(root)).free
    if total > free:
        raise NotEnoughRoom(
            f"the data of size {size} needs {total / GIB:.2f} GiB but {root} has {free / GIB:.2f} GiB free; "
            "free some space, choose a smaller --size, or set HOTLAP_DATA to a folder on a larger disk"
        )
    most = max(asked, key=lambda one: one.memory_mb)
    available = psutil.virtual_memory().available / MIB
    if most.memory_mb > available:
        raise NotEnoughRoom(
            f"{most.workload} of size {size} needs about {most.memory_mb / 1024:.1f} GiB of memory but "
            f"{available / 1024:.1f} GiB are available; close other programs or choose a smaller --size"
        )


def make(place: Path, workload: str, size: str, on_wait: OnWait) -> Path:
    """The folder of the data, made when missing; interrupted before, it is made anew."""
    began = time.monotonic()
    command = [sys.executable, str(place / workload / "data.py"), "--size", size, "--seed", SEED]
    process = spawn.start(command, subprocess.PIPE)
    try:
        out, errors = _wait(process, lambda: on_wait(workload, time.monotonic() - began))
    finally:
        spawn.end(process)
    if process.returncode != 0 or not out.strip():
        raise DataNotMade(f"the data of {workload} could not be made: {_last(errors, process.returncode)}")
    return Path(out.strip().splitlines()[-1])


def _wait(process: subprocess.Popen[str], on_wait: Callable[[], None]) -> tuple[str, str]:
    while True:
        on_wait()
        try:
            return process.communicate(timeout=0.5)
        except subprocess.TimeoutExpired:
            continue


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.resolve().parents) if folder.exists())


def _last(errors: str, code: int) -> str:
    lines = [line for line in errors.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"it ended with exit code {code} and said nothing"

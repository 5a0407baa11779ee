"""The workloads' data, made before anything is timed: one data seed, so that all arms and seeds train on the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotlap.errors import DataNotMade, NotEnoughRoom
from hotlap.machine import free_bytes
from hotlap.process import launch
from hotlap.process.attendant import Attendant
from hotlap.process.output import outputs

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
        raise DataNotMade(
            f"the generator of {workload} cannot start: {_last(done.stderr.splitlines(), done.returncode)}"
        )
    told = json.loads(done.stdout.strip().splitlines()[-1])
    # Where the workload does not say, the data twice beside torch is the least any arm needs.
    memory = told["memory_mb"] or PROCESS_MB + 2 * told["size"] / MIB
    return Needs(workload=workload, root=Path(told["root"]), bytes_needed=int(told["missing"]), memory_mb=float(memory))


def require_room(asked: Sequence[Needs], size: str) -> None:
    if not asked:
        return
    root, total = asked[0].root, sum(need.bytes_needed for need in asked)
    free = shutil.disk_usage(_existing(root)).free
    if total > free:
        raise NotEnoughRoom(
            f"the data of size {size} needs {total / GIB:.2f} GiB but {root} has {free / GIB:.2f} GiB free; "
            "free some space, choose a smaller --size, or set HOTLAP_DATA to a folder on a larger disk"
        )
    most = max(asked, key=lambda need: need.memory_mb)
    available = free_bytes() / MIB
    if most.memory_mb > available:
        raise NotEnoughRoom(
            f"{most.workload} of size {size} needs about {most.memory_mb / 1024:.1f} GiB of memory but "
            f"{available / 1024:.1f} GiB are available; close other programs or choose a smaller --size"
        )


def make(place: Path, workload: str, size: str, on_wait: OnWait) -> Path:
    """The folder of the data, made when missing; interrupted before, it is made anew."""
    began = time.monotonic()
    command = [sys.executable, str(place / workload / "data.py"), "--size", size, "--seed", SEED]
    attendant = Attendant(launch.start_apart(command, os.environ, at_our_death=signal.SIGKILL), poll=0.5)
    out, errors = outputs(attendant.child)

    def look() -> bool:
        on_wait(workload, time.monotonic() - began)
        return False

    try:
        attendant.wait(look)
    finally:
        attendant.end()
    for output in (out, errors):
        output.wait(5.0)
    if attendant.child.returncode != 0 or not out.last:
        raise DataNotMade(f"the data of {workload} could not be made: {_last(errors.last, attendant.child.returncode)}")
    return Path(out.last[-1])


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.resolve().parents) if folder.exists())


def _last(lines: Sequence[str], code: int) -> str:
    said = [line.strip() for line in lines if line.strip()]
    return said[-1] if said else f"it ended with exit code {code} and said nothing"

"""Generates the data of the workloads before anything is timed, with one seed, so that all runs train on the same."""

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

# Asks a generator what it needs: its `ensure` calls `cache.make_once`, which is replaced to report instead of generate.
QUESTION = """
import json, sys
sys.path.insert(0, sys.argv[1])
import data
import cache
def answer(folder, build, bytes_needed):
    memory = getattr(data, "MEMORY_MB", {}).get(sys.argv[2])
    missing = 0 if cache.is_complete(folder) else bytes_needed
    report = {"root": str(cache.data_root()), "size": bytes_needed, "missing": missing, "memory_mb": memory}
    print(json.dumps(report))
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
            f"the data generator of {workload} cannot start: {_last(done.stderr.splitlines(), done.returncode)}"
        )
    report = json.loads(done.stdout.strip().splitlines()[-1])
    # Without a figure from the workload: torch and two copies of the data are the least that any arm needs.
    memory = report["memory_mb"] or PROCESS_MB + 2 * report["size"] / MIB
    return Needs(
        workload=workload, root=Path(report["root"]), bytes_needed=int(report["missing"]), memory_mb=float(memory)
    )


def require_room(workloads: Sequence[Needs], size: str) -> None:
    if not workloads:
        return
    root, total = workloads[0].root, sum(need.bytes_needed for need in workloads)
    free = shutil.disk_usage(_existing(root)).free
    if total > free:
        raise NotEnoughRoom(
            f"the data of size {size} needs {total / GIB:.2f} GiB but {root} has {free / GIB:.2f} GiB free; "
            "free some space, choose a smaller --size, or set HOTLAP_DATA to a folder on a larger disk"
        )
    most = max(workloads, key=lambda need: need.memory_mb)
    available = free_bytes() / MIB
    if most.memory_mb > available:
        raise NotEnoughRoom(
            f"{most.workload} of size {size} needs about {most.memory_mb / 1024:.1f} GiB of memory but "
            f"{available / 1024:.1f} GiB are available; close other programs or choose a smaller --size"
        )


def make(place: Path, workload: str, size: str, on_wait: OnWait) -> Path:
    """Return the folder of the data, generating it if it is missing or was left incomplete."""
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
        raise DataNotMade(f"cannot generate the data of {workload}: {_last(errors.last, attendant.child.returncode)}")
    return Path(out.last[-1])


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.resolve().parents) if folder.exists())


def _last(lines: Sequence[str], code: int) -> str:
    printed = [line.strip() for line in lines if line.strip()]
    return printed[-1] if printed else f"it ended with exit code {code} and no output"

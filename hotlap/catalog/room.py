"""How much memory there is, and how many processes this machine has room for beside the training.

psutil is asked where the system does not say it in a file, and nowhere else: the program's interpreter may have torch
and nothing of ours.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hotlap.catalog.gpus import gpus

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
STATM = Path("/proc/self/statm")
SHARED = Path("/dev/shm")  # where workers put their batches on Linux
WORKER_BYTES = 300 << 20  # what a process with torch in it keeps for itself
PART = 2  # no more than one part of so many of what is free


def cores(environ: Mapping[str, str] = os.environ, cgroup: Path = CGROUP) -> int:
    """Usable by this process; the ranks of one machine share them."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    ranks = environ.get("LOCAL_WORLD_SIZE", "1")
    here = usable if quota is None else min(usable, quota)
    return max(1, here // max(1, int(ranks) if ranks.isdecimal() else 1))


def training_threads(torch: Any) -> int:
    """With a GPU only the thread that issues its work; else torch computes on all its threads."""
    return 1 if gpus(torch) else int(torch.get_num_threads())


def workers_by_memory(batch_bytes: int, depth: int) -> int:
    """Each worker has a process and `depth` batches under way. Too little shared memory would kill it."""
    each = depth * max(1, batch_bytes)
    limits = []
    if SHARED.is_dir():
        limits.append(shutil.disk_usage(SHARED).free // PART // each)
    free = free_bytes()
    if free is not None:
        limits.append(free // PART // (each + WORKER_BYTES))
    return min(limits, default=1 << 30)


def free_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Host memory that can still be had; None where the system does not say."""
    found = []
    for line in _text(meminfo).splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) << 10)
    limit, used = _text(cgroup / "memory.max").strip(), _text(cgroup / "memory.current").strip()
    if limit.isdecimal() and used.isdecimal():
        found.append(max(0, int(limit) - int(used)))
    return min(found, default=None)


class Held(NamedTuple):
    """Bytes of this process."""

    addresses: int
    resident: int


def held_bytes() -> Held:
    """Some 20 µs."""
    pages = _text(STATM).split()
    if pages:
        return Held(*(int(one) * os.sysconf("SC_PAGE_SIZE") for one in pages[:2]))
    import psutil

    found = psutil.Process().memory_info()
    return Held(found.vms, found.rss)


def _quota(cgroup: Path) -> int | None:
    """Cores that a container may use, rounded up."""
    parts = _text(cgroup / "cpu.max").split()
    if not parts:
        parts = [_text(cgroup / "cpu" / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(parts) != 2 or not all(part.isdecimal() for part in parts) or int(parts[1]) == 0:
        return None
    return max(1, -(-int(parts[0]) // int(parts[1])))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""

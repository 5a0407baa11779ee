"""How many cores this process may use: those it is bound to, and no more than its control group's share of time."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")


def bound_cores() -> int:
    """What OpenMP sees."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_cores(root: Path = ROOT) -> int:
    limits = [limit for limit in _limits(root) if limit > 0]
    return max(1, min([bound_cores(), *(math.ceil(limit) for limit in limits)]))


def _limits(root: Path) -> Iterator[float]:
    """Cores' worth of time, of each control group that this process is in; OpenMP knows nothing of them."""
    groups = ["/"]
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        groups += [line.split(":", 2)[2] for line in lines if line.count(":") >= 2]
    for group in dict.fromkeys(groups):
        for folder in (Path(group), *Path(group).parents):
            inside = str(folder).lstrip("/")
            yield from _version_2(root / "sys/fs/cgroup" / inside)
            yield from _version_1(root / "sys/fs/cgroup/cpu" / inside)


def _version_2(folder: Path) -> Iterator[float]:
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        yield int(quota) / int(period)  # "max" is no number: no limit


def _version_1(folder: Path) -> Iterator[float]:
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota = int((folder / "cpu.cfs_quota_us").read_text(encoding="utf-8"))
        yield quota / int((folder / "cpu.cfs_period_us").read_text(encoding="utf-8"))  # -1: no limit

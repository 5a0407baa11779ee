"""The cores, the memory and the GPUs that this process may use, answered in one place for all of hotlap.

Only the standard library is required. psutil is imported solely where the system has no file to read: the program's
interpreter may have torch and none of hotlap's dependencies.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path("/")
SHARED = Path("/dev/shm")  # where workers put their batches on Linux
WORKER_BYTES = 300 << 20  # what a process takes once torch is imported
PART = 2  # use at most 1/PART of what is free
NO_GPU = "no GPU that torch can use"
NEARLY_GONE = 0.03  # share of the memory that is still free
NO_LIMIT = 2**60  # bytes; cgroup v1 expresses "no limit" as a larger number


# Cores


def bound_cores() -> int:
    """Return how many cores the process is bound to, which is what OpenMP sees."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_cores(root: Path = ROOT) -> int:
    """Return the bound cores, at most the cgroup quotas rounded up: a quota of 1.5 keeps two threads busy in turn."""
    limits = [math.ceil(limit) for limit in _quotas(root) if limit > 0]
    return max(1, min([bound_cores(), *limits]))


def cores_of_a_rank(environ: Mapping[str, str] = os.environ) -> int:
    """Return this rank's share of the usable cores: the ranks of one machine share them."""
    return max(1, usable_cores() // ranks_here(environ))


def ranks_here(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many processes of this training run on this machine, according to torchrun."""
    ranks = environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(ranks)) if ranks.isdecimal() else 1


def _quotas(root: Path) -> Iterator[float]:
    """Yield the CPU quota, in cores, of each control group that this process is in."""
    groups = ["/"]
    for line in _text(root / "proc/self/cgroup").splitlines():
        groups += line.split(":", 2)[2:]
    for group in dict.fromkeys(groups):
        for folder in (Path(group), *Path(group).parents):
            inside = str(folder).lstrip("/")
            yield from _quota(_text(root / "sys/fs/cgroup" / inside / "cpu.max"))
            old = root / "sys/fs/cgroup/cpu" / inside
            yield from _quota(f"{_text(old / 'cpu.cfs_quota_us')} {_text(old / 'cpu.cfs_period_us')}")


def _quota(text: str) -> Iterator[float]:
    with suppress(ValueError, ZeroDivisionError):
        quota, period = text.split()
        yield int(quota) / int(period)  # no limit is "max", which is not a number, or -1, which the caller drops


# Memory


def total_bytes(root: Path = ROOT) -> int:
    """Return the memory of the machine, or the limit of the control group where that is lower."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _of_group(root, "memory.max", "memory/memory.limit_in_bytes")
    return machine if limit is None else min(machine, limit)


def free_bytes(root: Path = ROOT) -> int:
    """Return how many bytes can still be allocated without swapping."""
    free = _available(root)
    limit = _of_group(root, "memory.max", "memory/memory.limit_in_bytes")
    used = _of_group(root, "memory.current", "memory/memory.usage_in_bytes")
    if limit is not None and used is not None:
        free = min(free, max(limit - used + _cached_files(root), 0))
    return free


def memory_nearly_gone(root: Path = ROOT) -> str | None:
    """Say how much memory is left where the OOM killer is near, on the machine or in its container; None elsewhere."""
    free, total = free_bytes(root), total_bytes(root)
    if free >= NEARLY_GONE * total:
        return None
    return f"{free >> 20} MB of {total >> 20} MB of memory are left"


class ProcessMemory(NamedTuple):
    """The address space and the resident memory of this process, in bytes."""

    addresses: int
    resident: int


def held_bytes() -> ProcessMemory:
    """Return the bytes held by this process; takes about 20 µs."""
    pages = _text(ROOT / "proc/self/statm").split()
    if pages:
        return ProcessMemory(*(int(number) * os.sysconf("SC_PAGE_SIZE") for number in pages[:2]))
    import psutil

    memory = psutil.Process().memory_info()
    return ProcessMemory(memory.vms, memory.rss)


# GPUs


def gpus(torch: Any) -> int:
    """Count the GPUs that the program may use without initialising CUDA: it may still choose among them, or fork.

    torch.cuda.is_available() would initialise the driver, which from then on ignores CUDA_VISIBLE_DEVICES.
    """
    return int(torch.cuda.device_count())


def gpu_name(torch: Any) -> str:
    """Return the name of the first GPU by NVML: torch would initialise CUDA to find out."""
    try:
        import pynvml

        pynvml.nvmlInit()
        first = torch.cuda._parse_visible_devices()[0]
        by_number = isinstance(first, int)
        device = pynvml.nvmlDeviceGetHandleByIndex(first) if by_number else pynvml.nvmlDeviceGetHandleByUUID(first)
        return str(pynvml.nvmlDeviceGetName(device))
    except Exception:  # noqa: BLE001 no NVML, or CUDA_VISIBLE_DEVICES in a form it does not know
        return str(torch.cuda.get_device_name())


# Processes beside the training


def training_threads(torch: Any) -> int:
    """Return 1 with a GPU, where one thread issues all the work; otherwise torch computes on all its threads."""
    return 1 if gpus(torch) else int(torch.get_num_threads())


def workers_by_memory(batch_bytes: int, depth: int) -> int:
    """Return how many workers fit: each is a process with `depth` batches in flight; without shared memory it dies."""
    under_way = depth * max(1, batch_bytes)
    limits = [free_bytes() // PART // (under_way + WORKER_BYTES)]
    if SHARED.is_dir():
        limits.append(shutil.disk_usage(SHARED).free // PART // under_way)
    return min(limits)


# What the system says


def _available(root: Path) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    with suppress(ImportError):
        import psutil

        return int(psutil.virtual_memory().available)
    return total_bytes(root) // 2


def _of_group(root: Path, version_2: str, version_1: str) -> int | None:
    for name in (version_2, version_1):
        text = _text(root / "sys/fs/cgroup" / name).strip()
        if text.isdecimal() and int(text) < NO_LIMIT:
            return int(text)
    return None


def _cached_files(root: Path) -> int:
    """Return the page cache that the control group counts as used but reclaims under pressure."""
    for line in _text(root / "sys/fs/cgroup/memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == "file" and value.isdecimal():
            return int(value)
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""

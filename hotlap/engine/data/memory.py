"""How much memory is free, on the host and on a device, as far as this process may use it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

GIB = 2**30


def host_total() -> int:
    """Bytes this process may use at most: the machine's, or the control group's where that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = group_number("memory.max", "memory/memory.limit_in_bytes")
    return machine if limit is None else min(machine, limit)


def host_free() -> int:
    """Bytes that can be taken without swapping; half of all memory where the system does not say."""
    available = linux_available()
    free = host_total() // 2 if available is None else available
    limit = group_number("memory.max", "memory/memory.limit_in_bytes")
    used = group_number("memory.current", "memory/memory.usage_in_bytes")
    if limit is not None and used is not None:
        free = min(free, max(limit - used, 0))
    return free


def linux_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def group_number(version_2: str, version_1: str) -> int | None:
    for name in (version_2, version_1):
        try:
            text = (Path("/sys/fs/cgroup") / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < 2**60:  # version 1 says "no limit" with a huge number
            return int(text)
    return None


def device_free(device: torch.device) -> int:
    """Free memory of the device, with what torch has reserved and does not use."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return host_free()


@dataclass(frozen=True)
class Room:
    """Free bytes, and how much of them data may take: the rest is for the model, its activations and the optimizer."""

    device: int
    host: int
    share: float = 0.6

    @property
    def for_device(self) -> int:
        return int(self.device * self.share)

    @property
    def for_host(self) -> int:
        return int(self.host * self.share)


def measured(device: torch.device, share: float = 0.6) -> Room:
    return Room(device_free(device), host_free(), share)


def in_words(count: float) -> str:
    for unit, size in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"

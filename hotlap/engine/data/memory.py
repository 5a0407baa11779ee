"""How much memory is free, on the host and on a device, as far as this process may use it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hotlap.machine import free_bytes

GIB = 2**30


def device_free(device: torch.device) -> int:
    """Return the device's free memory, including what torch has reserved but does not use."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return free_bytes()


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
    return Room(device_free(device), free_bytes(), share)


def in_words(count: float) -> str:
    for unit, size in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"

"""How many threads read and how many compute, by memory, cores and kind of data; never more than there are cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hotlap.engine.data.errors import DataMismatch
from hotlap.engine.data.memory import GIB, in_words
from hotlap.machine import total_bytes, usable_cores

Kind = Literal["sequence", "table", "image"]

# The battery reports' tiers: readers below 8 GiB, below 16 GiB and above, and batches each reads ahead.
# Windows of sequences are the largest samples, so they get the fewest readers. Pictures: the banknote report.
TIERS: dict[str, tuple[tuple[int, int, int], int]] = {
    "sequence": ((0, 2, 4), 2),
    "table": ((2, 4, 8), 4),
    "image": ((1, 4, 8), 2),
}
MEMORY_SHARE = 0.25  # of all memory, for batches that wait to be used


@dataclass(frozen=True)
class Machine:
    cores: int
    memory: int
    gpu: bool


@dataclass(frozen=True)
class Workers:
    """With `readers` 0 the training thread reads by itself. `ahead` counts all batches read in advance."""

    readers: int
    ahead: int
    compute_threads: int
    why: str


def this_machine(gpu: bool = False) -> Machine:
    return Machine(usable_cores(), total_bytes(), gpu)


def workers_for(kind: Kind, batch_bytes: int, machine: Machine | None = None) -> Workers:
    """Choose readers, batches ahead and compute threads for batches of this size on this machine."""
    if kind not in TIERS:
        raise DataMismatch(f"unknown kind of data {kind!r}; use one of {', '.join(TIERS)}")
    machine = machine or this_machine()
    tiers, ahead_each = TIERS[kind]
    tier = 0 if machine.memory < 8 * GIB else 1 if machine.memory < 16 * GIB else 2
    by_memory = tiers[tier]
    by_cores = machine.cores - 1 if machine.gpu else machine.cores // 2  # on a CPU the model computes on the others
    affordable = int(machine.memory * MEMORY_SHARE) // max(batch_bytes, 1)
    readers = max(0, min(by_memory, by_cores, affordable // 2))
    ahead = min(max(readers, 1) * ahead_each, max(affordable, 2))
    compute = max(1, machine.cores - readers)
    why = (
        f"{readers} readers of {kind} data: {by_memory} by memory ({in_words(machine.memory)}), "
        f"{by_cores} by cores ({machine.cores}), {affordable // 2} by the size of a batch ({in_words(batch_bytes)})"
    )
    return Workers(readers, max(ahead, 2), compute, why)

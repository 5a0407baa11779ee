"""How many processes this machine has room for beside the training."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hotlap.catalog.gpus import gpus
from hotlap.machine import free_bytes

SHARED = Path("/dev/shm")  # where workers put their batches on Linux
WORKER_BYTES = 300 << 20  # what a process with torch in it keeps for itself
PART = 2  # no more than one part of so many of what is free


def training_threads(torch: Any) -> int:
    """With a GPU only the thread that issues its work; else torch computes on all its threads."""
    return 1 if gpus(torch) else int(torch.get_num_threads())


def workers_by_memory(batch_bytes: int, depth: int) -> int:
    """Each worker has a process and `depth` batches under way. Too little shared memory would kill it."""
    each = depth * max(1, batch_bytes)
    limits = [free_bytes() // PART // (each + WORKER_BYTES)]
    if SHARED.is_dir():
        limits.append(shutil.disk_usage(SHARED).free // PART // each)
    return min(limits)

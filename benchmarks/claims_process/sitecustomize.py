"""Run by Python as each process of a claim starts, where this folder is on its path.

It counts the cores that it was given, not those that others have beside it, and where it used a GPU it tells the most
that torch had reserved there.
"""

from __future__ import annotations

import atexit
import os
import sys


def _tell() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        print(f"device_mb {torch.cuda.max_memory_reserved() / 2**20:.6g}", flush=True)


if hasattr(os, "sched_getaffinity"):
    os.cpu_count = lambda: len(os.sched_getaffinity(0))
atexit.register(_tell)

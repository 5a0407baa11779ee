"""How a process ended, from its last words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hotlap.records.trial import Ended
from hotlap.trial.endings import Process, how_it_ended
from hotlap.trial.order import Told


def ends(*seconds: float) -> list[float]:
    total, found = 10.0, []
    for one in seconds:
        total += one
        found.append(total)
    return found


TOLD = Told(
    schema=1, pid=1, rank=0, done=False, began=1.0, ends=tuple(ends(*[0.1] * 40)), marks=(), losses=(1.0,) * 40,
    readings=(), hardware="", host_mb=1.0, device_mb=None,
)  # fmt: skip


PROCESS = Process(told=TOLD, exit_code=0, ended_by_us=None, last_words=(), problem=None)


@pytest.mark.parametrize(
    ("change", "ended", "why"),
    [
        ({}, Ended.MEASURED, ""),
        ({"told": replace(TOLD, done=True), "ended_by_us": (Ended.HUNG, "deaf")}, Ended.MEASURED, ""),
        ({"told": replace(TOLD, ends=TOLD.ends[:9])}, Ended.TOO_SHORT, "after 9 steps"),
        ({"told": None}, Ended.NEVER_STEPPED, "without a training step"),
        ({"told": replace(TOLD, losses=(1.0, math.nan), done=True)}, Ended.NOT_A_NUMBER, "step 2"),
        ({"exit_code": -9}, Ended.OUT_OF_MEMORY, "killed by the system"),
        ({"exit_code": 1, "last_words": ["torch.OutOfMemoryError: CUDA out of memory."]}, Ended.OUT_OF_MEMORY, "CUDA"),
        (
            {"exit_code": 1, "last_words": ["RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x`"]},
            Ended.OUT_OF_MEMORY,
            "CUBLAS_STATUS_ALLOC_FAILED",
        ),
        (
            {"exit_code": 1, "last_words": ["RuntimeError: data. DefaultCPUAllocator: not enough memory: you tried"]},
            Ended.OUT_OF_MEMORY,
            "DefaultCPUAllocator",
        ),
        ({"exit_code": 1, "last_words": ["x", "MemoryError"]}, Ended.OUT_OF_MEMORY, "MemoryError"),
        ({"exit_code": 1, "last_words": ["ValueError: of mine", "bye"]}, Ended.CRASHED, "ValueError: of mine (exit co"),
        (
            {"exit_code": 1, "last_words": ["RuntimeError: DataLoader worker (pid 7) exited unexpectedly"]},
            Ended.CRASHED,
            "DataLoader worker (pid 7)",
        ),
        ({"exit_code": -11}, Ended.CRASHED, "signal 11"),
        ({"exit_code": 70, "problem": "cannot prepare"}, Ended.CRASHED, "cannot prepare"),
        ({"ended_by_us": (Ended.OVER_TIME, "9 s")}, Ended.OVER_TIME, "9 s"),
    ],
)
def test_how_a_process_ended(change, ended, why):
    found = how_it_ended(replace(PROCESS, **change), least=25)

    assert found[0] is ended
    assert why in found[1]

"""The ending of a process is classified by its report, its exit code and its last lines."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hotlap.records.trial import EndReason
from hotlap.trial.endings import Process, how_it_ended
from hotlap.trial.order import ProcessReport


def ends(*seconds: float) -> list[float]:
    total, found = 10.0, []
    for duration in seconds:
        total += duration
        found.append(total)
    return found


REPORT = ProcessReport(
    schema=1, pid=1, rank=0, done=False, began=1.0, ends=tuple(ends(*[0.1] * 40)), marks=(), losses=(1.0,) * 40,
    readings=(), hardware="", host_mb=1.0, device_mb=None,
)  # fmt: skip


PROCESS = Process(report=REPORT, exit_code=0, ended_by_us=None, last_words=(), problem=None)


@pytest.mark.parametrize(
    ("change", "ended", "why"),
    [
        ({}, EndReason.MEASURED, ""),
        ({"report": replace(REPORT, done=True), "ended_by_us": (EndReason.HUNG, "deaf")}, EndReason.MEASURED, ""),
        ({"report": replace(REPORT, ends=REPORT.ends[:9])}, EndReason.TOO_SHORT, "after 9 steps"),
        ({"report": None}, EndReason.NEVER_STEPPED, "without a training step"),
        ({"report": replace(REPORT, losses=(1.0, math.nan), done=True)}, EndReason.NOT_A_NUMBER, "step 2"),
        ({"exit_code": -9}, EndReason.OUT_OF_MEMORY, "killed by the system"),
        (
            {"exit_code": 1, "last_words": ["torch.OutOfMemoryError: CUDA out of memory."]},
            EndReason.OUT_OF_MEMORY,
            "CUDA",
        ),
        (
            {"exit_code": 1, "last_words": ["RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x`"]},
            EndReason.OUT_OF_MEMORY,
            "CUBLAS_STATUS_ALLOC_FAILED",
        ),
        (
            {"exit_code": 1, "last_words": ["RuntimeError: data. DefaultCPUAllocator: not enough memory: you tried"]},
            EndReason.OUT_OF_MEMORY,
            "DefaultCPUAllocator",
        ),
        ({"exit_code": 1, "last_words": ["x", "MemoryError"]}, EndReason.OUT_OF_MEMORY, "MemoryError"),
        (
            {"exit_code": 1, "last_words": ["ValueError: of mine", "bye"]},
            EndReason.CRASHED,
            "ValueError: of mine (exit co",
        ),
        (
            {"exit_code": 1, "last_words": ["RuntimeError: DataLoader worker (pid 7) exited unexpectedly"]},
            EndReason.CRASHED,
            "DataLoader worker (pid 7)",
        ),
        ({"exit_code": -11}, EndReason.CRASHED, "signal 11"),
        ({"exit_code": 70, "problem": "cannot prepare"}, EndReason.CRASHED, "cannot prepare"),
        ({"ended_by_us": (EndReason.OVER_TIME, "9 s")}, EndReason.OVER_TIME, "9 s"),
    ],
)
def test_the_ending_of_a_process_is_classified(change, ended, why):
    found = how_it_ended(replace(PROCESS, **change), least=25)

    assert found[0] is ended
    assert why in found[1]

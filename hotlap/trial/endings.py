"""Tells how a process of a trial ended, from its report, its exit code and its last words."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hotlap.records.trial import EndReason
from hotlap.trial.order import ProcessReport

NO_MEMORY = re.compile(
    r"OutOfMemoryError|out of memory|not enough memory|^MemoryError|can't allocate memory|std::bad_alloc"
    r"|Cannot allocate memory|(CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation",
    re.I,
)
KILLED = -9
LONGEST = 300  # characters of a last line


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """What is known about a process once it is over."""

    report: ProcessReport | None
    exit_code: int
    ended_by_us: tuple[EndReason, str] | None  # the limit it exceeded
    last_words: Sequence[str]  # the last lines of its stderr
    problem: str | None  # why hotlap could not be loaded into it


def how_it_ended(process: Process, least: int) -> tuple[EndReason, str]:
    report = process.report
    if report is not None and (step := _not_finite(report)) is not None:
        return EndReason.NOT_A_NUMBER, f"the loss of step {step} is not finite"
    if report is not None and report.done:
        return EndReason.MEASURED, ""
    if process.problem is not None:
        return EndReason.CRASHED, process.problem
    if process.ended_by_us is not None:
        return process.ended_by_us
    if process.exit_code != 0:
        return _failed(process)
    steps = len(report.ends) if report is not None else 0
    if steps == 0:
        return EndReason.NEVER_STEPPED, "it ended without a training step"
    if steps < least:
        return EndReason.TOO_SHORT, f"it ended by itself after {steps} steps; {least} are needed"
    return EndReason.MEASURED, ""


def _not_finite(report: ProcessReport) -> int | None:
    return next((index + 1 for index, loss in enumerate(report.losses) if math.isnan(loss)), None)


def _failed(process: Process) -> tuple[EndReason, str]:
    words = [line.strip() for line in process.last_words if line.strip()]
    memory = [line for line in words if NO_MEMORY.search(line)]
    if memory:
        return EndReason.OUT_OF_MEMORY, memory[-1][:LONGEST]
    if process.exit_code == KILLED:
        return EndReason.OUT_OF_MEMORY, "killed by the system (signal 9), which usually means that memory ran out"
    error = _error_line(words)
    code = f"signal {-process.exit_code}" if process.exit_code < 0 else f"exit code {process.exit_code}"
    return EndReason.CRASHED, f"{error[:LONGEST]} ({code})" if error else code


def _error_line(words: Sequence[str]) -> str:
    """Return the last line that names an error, else the last line."""
    named = [line for line in words if re.match(r"[\w.]*(Error|Exception|Interrupt|Exit|Warning)\b", line)]
    return named[-1] if named else words[-1] if words else ""

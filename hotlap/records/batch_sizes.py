"""What each batch size costs a program, by `hotlap profile --batch-sizes`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSizeRun:
    """The same command with another batch size; without figures where `note` says why."""

    batch_size: int
    samples_per_second: float | None = None
    step_ms: float | None = None
    peak_host_mb: float | None = None  # of the training process
    peak_device_mb: float | None = None
    note: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSizeRuns:
    """All sizes in rising order, the program's own among them."""

    now: int
    rows: int | None  # of the training data, where it says
    optimizer: str | None
    runs: tuple[BatchSizeRun, ...]

from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation

MARKS_MS = 0.1  # three marks a step (batch, zero_grad, optimizer), on a slow host


def detect(seen: Observation) -> Expectation | None:
    if seen.mean_step_ms <= 0:
        return None
    most = min(1.0, MARKS_MS / seen.mean_step_ms)
    return Expectation(most=most, why="torch marks each batch and each optimizer step for a profiler")

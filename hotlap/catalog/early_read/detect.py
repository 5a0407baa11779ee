from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation

KINDS = ("item", "float", "format", "cpu")


def detect(seen: Observation) -> Expectation | None:
    """Early reads could save at most the waits for single values; which of them are losses is not known."""
    waiting = sum(sync.ms_per_step for sync in seen.syncs if sync.waits and sync.kind in KINDS)
    if not seen.on_cuda or waiting <= 0 or seen.mean_step_ms <= 0:
        return None
    share = min(1.0, waiting / seen.mean_step_ms)
    return Expectation(most=share, why=f"waiting for values from the device takes {share:.0%} of the step")

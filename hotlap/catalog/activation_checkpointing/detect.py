from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation

NEAR_LIMIT = 0.85


def detect(seen: Observation) -> Expectation | None:
    """Checkpointing saves memory and costs time: no faster step is expected, unless the memory lets the batch grow."""
    used, total = seen.memory.reserved_device_mb, seen.memory.total_device_mb
    if not used or not total or used < NEAR_LIMIT * total:
        return None
    return Expectation(
        most=0.0, why=f"{used / total:.0%} of the device's memory is in use; this saves memory, not time"
    )

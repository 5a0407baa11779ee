from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation

NEAR_LIMIT = 0.85


def detect(seen: Observation) -> Expectation | None:
    """It saves memory and costs time: nothing is expected of the step itself, unless the memory lets the batch grow."""
    used, total = seen.memory.reserved_device_mb, seen.memory.total_device_mb
    if not used or not total or used < NEAR_LIMIT * total:
        return None
    return Expectation(most=0.0, why=f"{used / total:.0%} of the device's memory is taken; it saves memory, not time")

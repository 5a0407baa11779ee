from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation

WASTED = 0.25  # of what is reserved
SHORT = 0.6  # of the device's memory: below that, waste costs nothing
MOST = 0.05  # a step does not wait for the allocator unless it must ask the device for memory again and again


def detect(seen: Observation) -> Expectation | None:
    """Memory reserved but never used is lost to fragments; when short of it, the allocator frees and requests again."""
    memory = seen.memory
    if not seen.on_cuda or not memory.peak_device_mb or not memory.reserved_device_mb or not memory.total_device_mb:
        return None
    wasted = 1 - memory.peak_device_mb / memory.reserved_device_mb
    if wasted < WASTED or memory.reserved_device_mb < SHORT * memory.total_device_mb:
        return None
    return Expectation(most=MOST, why=f"{wasted:.0%} of the reserved device memory is never used")

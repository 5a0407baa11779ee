from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation
from hotlap.records.shares import kernels, layers


def detect(seen: Observation) -> Expectation | None:
    """Expect at most the time of all kernels that only pass over memory."""
    found = layers(seen, "BatchNorm2d")
    if not seen.on_cuda or not found:
        return None
    share = kernels(seen, "memory", "other")
    if share <= 0:
        return None
    return Expectation(most=share, why=f"{found} batch normalisations take part of {share:.0%} of the step")

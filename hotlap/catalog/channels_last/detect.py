from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation
from hotlap.records.shares import CONVOLUTIONS, kernels, layers


def detect(seen: Observation) -> Expectation | None:
    """The gain is at most the time of convolutions on channels-first memory and of the layout changes around them."""
    found = layers(seen, *CONVOLUTIONS)
    if not found or not any(model.memory_format == "contiguous" for model in seen.models):
        return None
    share = kernels(seen, "convolution", "memory")
    if share <= 0:
        return None
    return Expectation(most=share, why=f"{found} convolutions ({share:.0%} of the step) run on channels-first memory")

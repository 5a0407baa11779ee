from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation
from hotlap.records.shares import RECURRENT, kernels, layers


def detect(seen: Observation) -> Expectation | None:
    """Weights that are not in one piece are copied at every call: at most the time of copies on the device."""
    if not seen.on_cuda or not layers(seen, *RECURRENT) or seen.device is None:
        return None
    share = kernels(seen, "copy", "memory")
    if share <= 0:
        return None
    return Expectation(most=share, why=f"copies on the device take {share:.0%} of the step beside recurrent layers")

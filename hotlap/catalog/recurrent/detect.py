from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation
from hotlap.records.shares import RECURRENT, kernels, layers


def detect(seen: Observation) -> Expectation | None:
    """Expect at most the time of copies on the device: scattered weights are copied at every call."""
    if not seen.on_cuda or not layers(seen, *RECURRENT) or seen.device is None:
        return None
    share = kernels(seen, "copy", "memory")
    if share <= 0:
        return None
    return Expectation(
        most=share, why=f"copies on the device take {share:.0%} of the step in a model with recurrent layers"
    )

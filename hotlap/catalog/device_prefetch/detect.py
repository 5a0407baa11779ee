from __future__ import annotations

from hotlap.records.observation import COPY, Observation
from hotlap.records.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """Prefetching on a GPU could save at most the copies to the device."""
    share = seen.shares.get(COPY, 0.0)
    if seen.machine.gpu is None or not seen.copies or share <= 0 or not seen.loaders:
        return None
    return Expectation(most=share, why=f"copies of batches to the device take {share:.0%} of the step")

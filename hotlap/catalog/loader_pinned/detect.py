from __future__ import annotations

from hotlap.records.observation import COPY, Observation
from hotlap.records.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """Expect at most the time of copies from pageable memory."""
    share = seen.shares.get(COPY, 0.0)
    plain = [loader for loader in seen.loaders if loader.role == "train" and loader.workers and not loader.pin_memory]
    if not seen.on_cuda or not plain or share <= 0:
        return None
    return Expectation(most=share, why=f"copies from pageable memory take {share:.0%} of the step")

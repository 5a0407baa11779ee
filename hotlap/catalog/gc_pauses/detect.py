from __future__ import annotations

from hotlap.records.observation import GARBAGE, Observation
from hotlap.records.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """The gain is at most the time Python spends collecting; young objects are still collected."""
    share = seen.shares.get(GARBAGE, 0.0)
    if share <= 0:
        return None
    return Expectation(most=min(1.0, share), why=f"Python's garbage collector takes {share:.1%} of the step")

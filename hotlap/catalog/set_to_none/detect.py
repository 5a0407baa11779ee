from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """An observation does not tell how gradients are cleared; a run does."""
    return None

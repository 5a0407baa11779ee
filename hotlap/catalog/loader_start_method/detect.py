from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """Expect nothing: it makes other optimisations safe but saves no time itself."""
    return None

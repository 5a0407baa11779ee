from __future__ import annotations

from hotlap.model.observation import Observation
from hotlap.model.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """What a program prints is not observed, so nothing is promised."""
    return None

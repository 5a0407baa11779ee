from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation
from hotlap.records.shares import passes


def detect(seen: Observation) -> Expectation | None:
    """It slows forward and backward; by how much is not known before it is off."""
    if seen.settings is None or not seen.settings.anomaly_mode:
        return None
    return Expectation(most=passes(seen), why="anomaly mode is on and slows every operation of forward and backward")

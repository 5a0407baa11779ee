from __future__ import annotations

from hotlap.records.observation import BACKWARD, Observation
from hotlap.records.plan import Expectation

HAND_OVER_MS = 0.2  # two wake-ups of a thread at the very most, on a machine that is not overloaded


def detect(seen: Observation) -> Expectation | None:
    """The gain is at most a hand-over and a wake-up at each backward."""
    if not seen.on_cuda or seen.mean_step_ms <= 0:
        return None
    most = min(seen.shares.get(BACKWARD, 0.0), HAND_OVER_MS / seen.mean_step_ms)
    if most <= 0:
        return None
    return Expectation(most=most, why="each backward is handed to another thread, which is waited for")

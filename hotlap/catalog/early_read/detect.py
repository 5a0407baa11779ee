from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation

KINDS = ("item", "float", "format", "cpu")


def detect(seen: Observation) -> Expectation | None:
    """It could at most save the waits for single values; which of them are losses is not known."""
    waiting = sum(one.ms_per_step for one in seen.syncs if one.waits and one.kind in KINDS)
    if not seen.on_cuda or waiting <= 0 or seen.mean_step_ms <= 0:
        return None
    share = min(1.0, waiting / seen.mean_step_ms)
    return Expectation(most=share, why=f"waiting for values of the device takes {share:.0%} of the step")

from __future__ import annotations

from hotlap.records.observation import OPTIMIZER, Observation
from hotlap.records.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """An optimizer that is not fused could at most save its own time."""
    plain = [one for one in seen.optimizers if not one.fused]
    share = seen.shares.get(OPTIMIZER, 0.0)
    if not plain or share <= 0:
        return None
    names = ", ".join(sorted({one.name for one in plain}))
    return Expectation(most=share, why=f"{names} takes {share:.0%} of the step and is not fused")

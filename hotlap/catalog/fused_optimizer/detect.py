from __future__ import annotations

from hotlap.records.observation import OPTIMIZER, Observation
from hotlap.records.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """Fusing an optimizer could save at most its own time."""
    plain = [optimizer for optimizer in seen.optimizers if not optimizer.fused]
    share = seen.shares.get(OPTIMIZER, 0.0)
    if not plain or share <= 0:
        return None
    names = ", ".join(sorted({optimizer.name for optimizer in plain}))
    return Expectation(most=share, why=f"{names} takes {share:.0%} of the step and is not fused")

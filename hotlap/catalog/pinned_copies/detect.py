from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """Expect at most the time of copies from pageable memory, on a GPU."""
    slow = [copy for copy in seen.copies if not copy.pinned and copy.blocking]
    total = seen.mean_step_ms
    cost = sum(copy.ms_per_step for copy in slow)
    if seen.machine.gpu is None or not slow or total <= 0:
        return None
    share = min(1.0, cost / total)
    return Expectation(most=share, why=f"copies from pageable memory take {share:.0%} of the step")

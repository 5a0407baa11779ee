from __future__ import annotations

from hotlap.records.observation import GARBAGE, Observation
from hotlap.records.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """Expect at most the time of garbage collections, whether explicit or automatic, and of empty_cache calls."""
    collecting = seen.shares.get(GARBAGE, 0.0)
    calls = [call for call in seen.syncs if call.kind == "empty_cache"]
    emptying = sum(call.ms_per_step for call in calls) / seen.mean_step_ms if seen.mean_step_ms else 0.0
    share = min(1.0, collecting + emptying)
    if share <= 0:
        return None
    return Expectation(most=share, why=f"collecting garbage and emptying the cache take {share:.1%} of the step")

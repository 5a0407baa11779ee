from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation
from hotlap.records.shares import kernels, layers, passes


def detect(seen: Observation) -> Expectation | None:
    """Expect at most the time of the recurrent layers, or of both passes if that is unknown."""
    found = layers(seen, "LSTM", "GRU")
    if not seen.on_cuda or not found:
        return None
    share = kernels(seen, "recurrent") or passes(seen)
    if share <= 0:
        return None
    return Expectation(most=share, why=f"{found} recurrent layers take up to {share:.0%} of the step")

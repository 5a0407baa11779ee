from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation
from hotlap.records.shares import kernels


def detect(seen: Observation) -> Expectation | None:
    """Expect at most the time of the matrix products, if they run in full float32 on a GPU."""
    if not seen.on_cuda or seen.settings is None or seen.settings.matmul_precision != "highest":
        return None
    if seen.settings.autocast is not None:
        return None
    share = kernels(seen, "matmul")
    if share <= 0:
        return None
    return Expectation(most=share, why=f"matrix products in full float32 take {share:.0%} of the step")

from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation
from hotlap.records.shares import kernels


def detect(seen: Observation) -> Expectation | None:
    """Products in full float32 on a GPU could at most save their own time."""
    if not seen.on_cuda or seen.settings is None or seen.settings.matmul_precision != "highest":
        return None
    if seen.settings.autocast is not None:
        return None
    share = kernels(seen, "matmul")
    if share <= 0:
        return None
    return Expectation(most=share, why=f"matrix products take {share:.0%} of the step, in full float32")

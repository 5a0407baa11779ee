from __future__ import annotations

from hotlap.records.observation import BACKWARD, FORWARD, OPTIMIZER, Observation
from hotlap.records.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """A graph saves the host time spent launching kernels: at most the time for which the device idles meanwhile."""
    if not seen.on_cuda or seen.device is None or any(model.compiled for model in seen.models):
        return None
    issuing = sum(seen.shares.get(phase, 0.0) for phase in (FORWARD, BACKWARD, OPTIMIZER))
    idle = max(0.0, 1.0 - seen.device.busy_share)
    most = min(issuing, idle)
    if most <= 0:
        return None
    launches = seen.device.launches_per_step
    return Expectation(
        most=most,
        why=f"{launches:.0f} kernels a step are launched one by one; the device is idle {idle:.0%} of the time",
    )

from __future__ import annotations

from hotlap.catalog.inplace_activations.apply import ACTIVATIONS
from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation
from hotlap.records.shares import kernels, layers


def detect(seen: Observation) -> Expectation | None:
    """In place, each activation saves a pass over memory: on a GPU at most the time of memory kernels."""
    found = layers(seen, *ACTIVATIONS)
    share = kernels(seen, "memory", "other")
    if not found or share <= 0 or any(model.compiled for model in seen.models):
        return None
    return Expectation(most=share, why=f"{found} activations write new memory in both passes ({share:.0%} of the step)")

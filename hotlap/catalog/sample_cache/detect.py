from __future__ import annotations

from hotlap.records.observation import DATA, Observation
from hotlap.records.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """Expect at most the wait for data, if the training process itself loads a map-style dataset."""
    share = seen.shares.get(DATA, 0.0)
    found = [
        loader
        for loader in seen.loaders
        if loader.dataset_kind == "map" and loader.workers == 0 and loader.role != "evaluation"
    ]
    if not found or share <= 0:
        return None
    names = ", ".join(sorted({loader.dataset for loader in found}))
    return Expectation(most=share, why=f"fetching the samples of {names} takes {share:.0%} of the step")

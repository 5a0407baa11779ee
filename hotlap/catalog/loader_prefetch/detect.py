from __future__ import annotations

from hotlap.catalog.loader_prefetch.apply import DEFAULT, READY
from hotlap.records.observation import DATA, Observation
from hotlap.records.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """Expect at most the wait for data: with few batches prepared ahead, slow ones stall the training."""
    share = seen.shares.get(DATA, 0.0)
    few = [
        loader
        for loader in seen.loaders
        if loader.role == "train"
        and loader.dataset_kind == "map"
        and 0 < loader.workers * (loader.prefetch or DEFAULT) < READY
    ]
    if not few or share <= 0:
        return None
    ahead = min(loader.workers * (loader.prefetch or DEFAULT) for loader in few)
    return Expectation(
        most=share, why=f"the loop waits for data {share:.0%} of the step, with {ahead} batches prepared ahead"
    )


def tries(seen: Observation) -> tuple[str, ...]:
    return ("4", "8", "16")

from __future__ import annotations

from hotlap.catalog.loader_workers.apply import LIGHT_BATCH_US
from hotlap.records.observation import DATA, Observation
from hotlap.records.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """Expect at most the wait for data, unless batches are too light to be worth sending."""
    share, cores = seen.shares.get(DATA, 0.0), seen.machine.cores // max(1, len(seen.ranks))
    few = [
        loader
        for loader in seen.loaders
        if loader.role == "train" and loader.dataset_kind == "map" and loader.workers < cores - 1
    ]
    if not few or share <= 0 or seen.ms(DATA) * 1000 < LIGHT_BATCH_US:
        return None
    names = ", ".join(sorted({f"{loader.dataset} with {loader.workers} workers" for loader in few}))
    return Expectation(most=share, why=f"the loop waits {share:.0%} of the step for {names}")


def tries(seen: Observation) -> tuple[str, ...]:
    """Return powers of two that leave one core to each process."""
    most = seen.machine.cores // max(1, len(seen.ranks)) - 1
    has = max((loader.workers for loader in seen.loaders if loader.role == "train"), default=0)
    return tuple(str(1 << power) for power in range(10) if has < 1 << power <= most) or (str(max(1, most)),)

from __future__ import annotations

import math

from hotlap.records.observation import DATA, Loader, Observation
from hotlap.records.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """Starting workers shows as data wait at the begin of an epoch; it could at most save all of that wait."""
    share = seen.shares.get(DATA, 0.0)
    leaving = [
        loader
        for loader in seen.loaders
        if loader.workers and not loader.persistent_workers and _several_epochs(loader)
    ]
    if not leaving or share <= 0:
        return None
    names = ", ".join(sorted({loader.dataset for loader in leaving}))
    return Expectation(most=share, why=f"each epoch starts the workers of {names} anew")


def _several_epochs(loader: Loader) -> bool:
    if not loader.length or not loader.batch_size:
        return False
    return loader.batches > math.ceil(loader.length / loader.batch_size)

from __future__ import annotations

from hotlap.records.observation import DATA, Observation
from hotlap.records.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """Expect at most the whole wait for data: starting workers shows as such a wait at the start of an epoch."""
    share = seen.shares.get(DATA, 0.0)
    restarting = [
        loader for loader in seen.loaders if loader.workers and not loader.persistent_workers and loader.is_restarted
    ]
    if not restarting or share <= 0:
        return None
    names = ", ".join(sorted({loader.dataset for loader in restarting}))
    return Expectation(most=share, why=f"each epoch restarts the workers of {names}")

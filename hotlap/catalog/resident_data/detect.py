from __future__ import annotations

from hotlap.records.observation import COPY, DATA, Loader, Observation
from hotlap.records.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """Expect at most the wait for data and the copies to the device, if a map-style dataset is loaded."""
    share = seen.shares.get(DATA, 0.0) + seen.shares.get(COPY, 0.0)
    names = dataset_names(seen)
    if not names or share <= 0:
        return None
    return Expectation(most=min(share, 1.0), why=f"fetching and copying {names} takes {share:.0%} of the step")


def dataset_names(seen: Observation) -> str:
    return ", ".join(sorted({loader.dataset for loader in seen.loaders if _can_be_kept(loader)}))


def _can_be_kept(loader: Loader) -> bool:
    return loader.dataset_kind == "map" and loader.role != "evaluation"

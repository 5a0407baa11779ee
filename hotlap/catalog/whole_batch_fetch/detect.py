from __future__ import annotations

from hotlap.records.observation import DATA, Observation
from hotlap.records.plan import Expectation

IN_MEMORY = ("TensorDataset", "Subset")
LIGHT_US = 30.0  # a sample fetched in less time is likely a row of in-memory data


def detect(seen: Observation) -> Expectation | None:
    """Expect at most the wait for data, if items are cheap enough to be rows in memory."""
    share = seen.shares.get(DATA, 0.0)
    alone = [
        loader
        for loader in seen.loaders
        if loader.role == "train" and loader.dataset_kind == "map" and not loader.workers
    ]
    sample = seen.ms(DATA) * 1000 / seen.samples_per_step if seen.samples_per_step else None
    light = sample is not None and sample < LIGHT_US
    fitting = [loader for loader in alone if loader.dataset in IN_MEMORY or light]
    if not fitting or share <= 0:
        return None
    names = ", ".join(sorted({loader.dataset for loader in fitting}))
    return Expectation(most=share, why=f"{names} is fetched item by item, which takes {share:.0%} of the step")

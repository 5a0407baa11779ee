from __future__ import annotations

from hotlap.records.observation import REST, Observation
from hotlap.records.plan import Expectation

BARS = ("lightning", "pytorch-lightning", "tqdm", "transformers")  # packages whose loops draw bars with tqdm


def detect(seen: Observation) -> Expectation | None:
    """Expect at most the part of a step outside all known phases, which includes drawing."""
    share = seen.shares.get(REST, 0.0)
    if share <= 0 or not any(name in seen.machine.versions for name in BARS):
        return None
    return Expectation(most=min(1.0, share), why=f"drawing takes at most the {share:.1%} of the step outside torch")

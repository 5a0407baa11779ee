from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation
from hotlap.records.shares import CONVOLUTIONS, kernels, layers


def detect(seen: Observation) -> Expectation | None:
    """Tuning could save at most the time of the convolutions."""
    settings = seen.settings
    if not seen.on_cuda or settings is None or settings.cudnn_benchmark or settings.deterministic:
        return None
    share = kernels(seen, "convolution")
    if share <= 0 or not layers(seen, "Conv1d", *CONVOLUTIONS):
        return None
    return Expectation(
        most=share, why=f"convolutions take {share:.0%} of the step, with algorithms chosen by rule of thumb"
    )

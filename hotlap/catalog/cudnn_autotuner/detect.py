from __future__ import annotations

from hotlap.catalog.shares import CONVOLUTIONS, kernels, layers
from hotlap.model.observation import Observation
from hotlap.model.plan import Expectation


def detect(seen: Observation) -> Expectation | None:
    """Convolutions by an untried algorithm could at most save their own time."""
    settings = seen.settings
    if not seen.on_cuda or settings is None or settings.cudnn_benchmark or settings.deterministic:
        return None
    share = kernels(seen, "convolution")
    if share <= 0 or not layers(seen, "Conv1d", *CONVOLUTIONS):
        return None
    return Expectation(most=share, why=f"convolutions take {share:.0%} of the step, by an algorithm chosen untried")

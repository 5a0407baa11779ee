from __future__ import annotations

from hotlap.records.observation import Observation
from hotlap.records.plan import Expectation
from hotlap.records.shares import RECURRENT, kernels, layers


def detect(seen: Observation) -> Expectation | None:
    """Half precision could save at most the time of float32 products and convolutions on a GPU, and that of memory."""
    settings = seen.settings
    if not seen.on_cuda or settings is None or settings.autocast is not None or settings.grad_scaler:
        return None
    if layers(seen, *RECURRENT) or not any("float32" in model.dtypes for model in seen.models):
        return None
    share = kernels(seen, "matmul", "convolution", "attention", "memory")
    if share <= 0:
        return None
    return Expectation(
        most=share, why=f"matrix products, convolutions and memory access take {share:.0%} of the step in float32"
    )


def tries(seen: Observation) -> tuple[str, ...]:
    return ("bf16", "fp16")

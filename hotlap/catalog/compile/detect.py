from __future__ import annotations

from hotlap.records.observation import BACKWARD, FORWARD, Observation
from hotlap.records.plan import Expectation

RECURRENT = ("LSTM", "GRU", "RNN")


def detect(seen: Observation) -> Expectation | None:
    """Compiling could save at most the time of forward and backward; for recurrent layers it saves nothing."""
    plain = [model for model in seen.models if not model.compiled]
    share = seen.shares.get(FORWARD, 0.0) + seen.shares.get(BACKWARD, 0.0)
    if not plain or share <= 0 or any(name in model.layers for model in plain for name in RECURRENT):
        return None
    names = ", ".join(sorted({model.name for model in plain}))
    return Expectation(
        most=share, why=f"{names} is not compiled; its forward and backward take {share:.0%} of the step"
    )


def tries(seen: Observation) -> tuple[str, ...]:
    """The other modes differ from the default on a GPU only."""
    return ("default", "reduce-overhead", "max-autotune") if seen.on_cuda else ("default",)

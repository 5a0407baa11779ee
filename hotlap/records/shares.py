"""Parts of an observation that several entries bound their gain by."""

from __future__ import annotations

from hotlap.records.observation import BACKWARD, FORWARD, Observation

RECURRENT = ("LSTM", "GRU", "RNN")
CONVOLUTIONS = ("Conv2d", "Conv3d", "ConvTranspose2d", "ConvTranspose3d")


def layers(seen: Observation, *names: str) -> int:
    return sum(model.layers.get(name, 0) for model in seen.models for name in names)


def passes(seen: Observation) -> float:
    """Forward and backward, as a share of the step."""
    return min(1.0, seen.shares.get(FORWARD, 0.0) + seen.shares.get(BACKWARD, 0.0))


def kernels(seen: Observation, *kinds: str) -> float:
    """Device time of these kinds of kernels, as a share of the step; all of both passes where none were looked at."""
    if seen.device is None:
        return passes(seen)
    busy = min(1.0, seen.device.busy_share)
    return min(1.0, busy * sum(kernel.share for kernel in seen.device.kernels if kernel.kind in kinds))

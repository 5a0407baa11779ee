"""Shares of an observation by which several entries bound their gain."""

from __future__ import annotations

from hotlap.records.observation import BACKWARD, FORWARD, Observation

RECURRENT = ("LSTM", "GRU", "RNN")
CONVOLUTIONS = ("Conv2d", "Conv3d", "ConvTranspose2d", "ConvTranspose3d")


def layers(observation: Observation, *names: str) -> int:
    return sum(model.layers.get(name, 0) for model in observation.models for name in names)


def passes(observation: Observation) -> float:
    """Return forward and backward as a share of the step."""
    return min(1.0, observation.shares.get(FORWARD, 0.0) + observation.shares.get(BACKWARD, 0.0))


def kernels(observation: Observation, *kinds: str) -> float:
    """Return the device time of these kinds of kernels as a share of the step; without a device, both passes."""
    if observation.device is None:
        return passes(observation)
    busy = min(1.0, observation.device.busy_share)
    return min(1.0, busy * sum(kernel.share for kernel in observation.device.kernels if kernel.kind in kinds))

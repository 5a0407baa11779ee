"""The order of an epoch's rows: a function of seed and epoch alone, so that a resumed run needs nothing else.

A GPU draws other permutations than a CPU from the same seed, so a run keeps its order only on the same kind of device.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPOCHS_A_SEED = 1_000_003  # a prime beyond any number of epochs: no two pairs (seed, epoch) share a number
STREAMS = 2**64  # numbers torch takes; it takes a negative one modulo this too


def epoch_order(rows: int, seed: int, epoch: int, device: torch.device, shuffle: bool = True) -> Tensor:
    if not shuffle:
        return torch.arange(rows, device=device)
    generator = torch.Generator(device).manual_seed((seed * EPOCHS_A_SEED + epoch) % STREAMS)
    return torch.randperm(rows, generator=generator, device=device)

"""Sine waves of one period and many phases, as one array in a file that `torch.load` reads.

The variant is its size, WAVES x LENGTH.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

PERIOD = 20.0


def make(folder: Path, variant: str = "20x40") -> None:
    waves, length = (int(part) for part in variant.split("x"))
    rng = np.random.default_rng(2)
    shifts = rng.integers(-4 * PERIOD, 4 * PERIOD, (waves, 1))
    torch.save(np.sin((np.arange(length) + shifts) / PERIOD), folder / "traindata.pt")

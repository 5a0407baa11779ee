"""Digits as torchvision's MNIST keeps them, made up: a class is a pattern with noise, so it can be learned.

The variant is the name of the class that reads them, and of its folder: MNIST, FashionMNIST, KMNIST.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np


def make(folder: Path, variant: str = "MNIST") -> None:
    raw = folder / variant / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (10, 7, 7)).repeat(4, axis=1).repeat(4, axis=2)
    for part, count in (("train", 60000), ("t10k", 10000)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        noise = rng.integers(-60, 60, (count, 28, 28))
        images = np.clip(patterns[labels] + noise, 0, 255).astype(np.uint8)
        _write(raw / f"{part}-images-idx3-ubyte", images)
        _write(raw / f"{part}-labels-idx1-ubyte", labels)


def _write(path: Path, values: np.ndarray) -> None:
    head = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(head + values.tobytes())

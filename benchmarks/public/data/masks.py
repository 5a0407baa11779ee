"""Photographs with a disc or two in each, and masks of where they are: imgs/NAME.jpg and masks/NAME_mask.gif."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def make(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for part in ("imgs", "masks"):
        (folder / part).mkdir()
    across, down = np.meshgrid(np.arange(128), np.arange(96))
    for number in range(100):
        image = rng.normal(90, 25, (96, 128, 3))
        mask = np.zeros((96, 128), dtype=bool)
        for _ in range(rng.integers(1, 3)):
            x, y, radius = rng.integers(20, 108), rng.integers(20, 76), rng.integers(8, 20)
            disc = (across - x) ** 2 + (down - y) ** 2 < radius**2
            image[disc] += rng.uniform(60, 110, 3)
            mask |= disc
        Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).save(folder / "imgs" / f"{number:04}.jpg")
        Image.fromarray(mask.astype(np.uint8)).save(folder / "masks" / f"{number:04}_mask.gif")

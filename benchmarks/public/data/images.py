"""Photographs, made up: a class is a colour and a direction of stripes, so it can be learned.

The variant is the layout: "split" has train/CLASS/*.jpg and val/CLASS/*.jpg, "flat" has CLASS/*.jpg, "bsds" has
BSDS300/images/train/*.jpg and test/*.jpg, "domains" has train/A, train/B, test/A and test/B.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 10


def make(folder: Path, variant: str = "split") -> None:
    rng = np.random.default_rng(0)
    if variant == "split":
        for part, count in (("train", 30), ("val", 4)):
            _classes(folder / part, count, rng)
    elif variant == "flat":
        _classes(folder, 30, rng)
    elif variant == "bsds":
        for part, count in (("train", 60), ("test", 10)):
            _several(folder / "BSDS300" / "images" / part, count, range(CLASSES), (481, 321), rng)
    elif variant == "domains":
        for part, count in (("train", 60), ("test", 10)):
            for domain, which in (("A", range(5)), ("B", range(5, 10))):
                _several(folder / part / domain, count, which, (128, 128), rng)
    else:
        raise ValueError(f"there is no layout {variant}")


def _classes(folder: Path, count: int, rng: np.random.Generator) -> None:
    for number in range(CLASSES):
        _several(folder / f"class{number}", count, [number], (160, 120), rng)


def _several(folder: Path, count: int, which: Sequence[int], size: tuple[int, int], rng: np.random.Generator) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        picture(which[number % len(which)], size, rng).save(folder / f"{number:04}.jpg", quality=85)


def picture(number: int, size: tuple[int, int], rng: np.random.Generator) -> Image.Image:
    """Stripes of the class's colour and direction, with a phase, a width and noise of its own."""
    wide, high = size
    across, down = np.meshgrid(np.arange(wide), np.arange(high))
    angle = np.pi * number / CLASSES
    wave = np.sin((across * np.cos(angle) + down * np.sin(angle)) / rng.uniform(3, 8) + rng.uniform(0, 6))
    colour = np.array([(number * 7) % 10, (number * 3) % 10, number]) / 9
    values = 128 + 100 * wave[..., None] * (colour - 0.4) + rng.normal(0, 12, (high, wide, 1))
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))

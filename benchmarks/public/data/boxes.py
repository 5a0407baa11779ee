"""Photographs with one to three rectangles in each, and their boxes as YOLO keeps them.

images/PART/NAME.jpg, labels/PART/NAME.txt, and data.yaml for the folder datasets/boxes of the repository.
Arial.ttf is empty: a trainer that would fetch this font finds it there, and draws nothing with it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 160
COLOURS = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200]])


def make(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for part, count in (("train", 400), ("val", 40)):
        images, labels = folder / "images" / part, folder / "labels" / part
        images.mkdir(parents=True)
        labels.mkdir(parents=True)
        for number in range(count):
            image, boxes = _one(rng)
            image.save(images / f"{number:04}.jpg")
            (labels / f"{number:04}.txt").write_text("".join(boxes))
    names = "".join(f"  {number}: {name}\n" for number, name in enumerate(("red", "green", "blue")))
    (folder / "Arial.ttf").touch()
    (folder / "data.yaml").write_text(f"path: datasets/boxes\ntrain: images/train\nval: images/val\nnames:\n{names}")


def _one(rng: np.random.Generator) -> tuple[Image.Image, list[str]]:
    values, boxes = rng.normal(110, 25, (SIDE, SIDE, 3)), []
    for _ in range(rng.integers(1, 4)):
        kind, (wide, high) = rng.integers(0, 3), rng.integers(20, 70, 2)
        x, y = rng.integers(0, SIDE - wide), rng.integers(0, SIDE - high)
        values[y : y + high, x : x + wide] = COLOURS[kind] + rng.normal(0, 10, (high, wide, 3))
        middle = ((x + wide / 2) / SIDE, (y + high / 2) / SIDE, wide / SIDE, high / SIDE)
        boxes.append(f"{kind} {' '.join(f'{number:.6f}' for number in middle)}\n")
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8)), boxes

"""Makes the banknote pictures once: `.npy` images and YOLO text labels (`class cx cy w h`).

python data.py --size small [--seed 0] [--root DIR]
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cache
import render

VERSION = 1
SIZES = ("tiny", "small", "report")
PIXELS_PER_PROCESS = 50_000_000  # below this, starting processes costs more than it saves


@dataclass(frozen=True)
class Shape:
    train_images: int
    valid_images: int
    scenery: render.Scenery

    @property
    def images(self) -> int:
        return self.train_images + self.valid_images

    @property
    def pixels(self) -> int:
        return self.images * self.scenery.side**2

    @property
    def bytes_needed(self) -> int:
        return 3 * self.pixels + 8192 * self.images  # two blocks of the disk for each header and label


SHAPES = {
    "tiny": Shape(160, 60, render.Scenery(side=64, most_notes=1, clutter=2, tilt=0.15)),
    "small": Shape(320, 100, render.Scenery(side=128, most_notes=2, clutter=6, tilt=0.5)),
    "report": Shape(1200, 300, render.Scenery(side=640, most_notes=4, clutter=9, tilt=0.5)),
}

# Host memory to train naively, a quarter added. Tiny and small: peak of all processes (PSS), measured on 2 cores.
# Report, from shapes: a batch of 16 pictures is 79 MB as floats; 4 workers each hold one in the making, twice, and two
# in advance, beside 80 MB of their own; 0.5 GB for the process, 1 GB allowed for CUDA. On a CPU the activations would
# come on top.
MEMORY_MB = {"tiny": 430, "small": 580, "report": 4_000}


def default_folder(size: str, seed: int = 0, root: Path | None = None) -> Path:
    return cache.folder("banknotes", size, seed, VERSION, root)


def ensure(size: str, seed: int = 0, root: Path | None = None) -> Path:
    """Return the folder with train/ and valid/, each with images/ and labels/, made if missing or damaged."""
    if size not in SHAPES:
        raise ValueError(f"unknown size {size!r} of the banknote data; use one of {', '.join(SIZES)}")
    shape = SHAPES[size]
    return cache.make_once(
        default_folder(size, seed, root), lambda folder: build(folder, shape, seed), shape.bytes_needed
    )


def build(folder: Path, shape: Shape, seed: int) -> None:
    jobs = []
    for number, (part, images) in enumerate((("train", shape.train_images), ("valid", shape.valid_images))):
        for kind in ("images", "labels"):
            (folder / part / kind).mkdir(parents=True)
        for block in blocks_of(images, 50):
            jobs.append((str(folder / part), (seed, VERSION, number), block, shape.scenery))
    processes = min(os.cpu_count() or 1, shape.pixels // PIXELS_PER_PROCESS, len(jobs))
    if processes < 2:
        for job in jobs:
            render.write_scenes(*job)
        return
    # Spawned, not forked: the caller may already have started CUDA.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for done in [pool.submit(render.write_scenes, *job) for job in jobs]:
            done.result()


def blocks_of(count: int, length: int) -> list[range]:
    return [range(start, min(start + length, count)) for start in range(0, count, length)]


if __name__ == "__main__":
    sys.exit(cache.command_line(ensure, SIZES))

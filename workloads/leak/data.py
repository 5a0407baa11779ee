"""Makes the leak data once: HDF5 mel segments `[files, long, short, 32, 1]` with labels per file and segment.

python data.py --size small [--seed 0] [--root DIR]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import audio
import cache

VERSION = 1
SIZES = ("tiny", "small", "report")


@dataclass(frozen=True)
class Shape:
    train_files: int
    valid_files: int
    long: int
    short: int

    @property
    def segments_per_file(self) -> int:
        return self.long * self.short


SHAPES = {
    "tiny": Shape(train_files=64, valid_files=48, long=2, short=6),
    "small": Shape(train_files=400, valid_files=120, long=2, short=10),
    "report": Shape(train_files=500, valid_files=125, long=8, short=10),
}

# Host memory to train naively, a quarter added. Tiny and small: peak of all processes (PSS), measured on 2 cores.
# Report, reckoned: 8 workers of 80 MB, as at small, 0.3 GB for the process, batches of less than 1 MB, 1 GB allowed for
# CUDA.
MEMORY_MB = {"tiny": 380, "small": 580, "report": 2_500}


def default_folder(size: str, seed: int = 0, root: Path | None = None) -> Path:
    return cache.folder("leak", size, seed, VERSION, root)


def ensure(size: str, seed: int = 0, root: Path | None = None) -> Path:
    """Return the folder with train.h5 and valid.h5, made if missing or damaged."""
    if size not in SHAPES:
        raise ValueError(f"unknown size {size!r} of the leak data; use one of {', '.join(SIZES)}")
    shape = SHAPES[size]
    files = shape.train_files + shape.valid_files
    bytes_needed = files * shape.segments_per_file * (audio.MEL_BANDS * 4 + 8) + 2**20
    return cache.make_once(default_folder(size, seed, root), lambda folder: build(folder, shape, seed), bytes_needed)


def build(folder: Path, shape: Shape, seed: int) -> None:
    train_seed, valid_seed = np.random.SeedSequence([seed, VERSION]).spawn(2)
    train = record_files(train_seed, shape.train_files, shape)
    valid = record_files(valid_seed, shape.valid_files, shape)
    # Both parts are scaled by the training part, so the validation part leaks nothing into training.
    mean, deviation = float(train[0].mean()), float(train[0].std())
    write_part(folder / "train.h5", train, mean, deviation)
    write_part(folder / "valid.h5", valid, mean, deviation)


def record_files(seed: np.random.SeedSequence, files: int, shape: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mel segments, the class of every file and the class of every segment."""
    mel = np.empty((files, shape.segments_per_file, audio.MEL_BANDS, 1), dtype=np.float32)
    segment_label = np.empty((files, shape.segments_per_file), dtype=np.int64)
    file_label = file_classes(np.random.default_rng(seed), files)
    for index, (file_seed, label) in enumerate(zip(seed.spawn(files), file_label, strict=True)):
        rng = np.random.default_rng(file_seed)
        sound, segment_label[index] = audio.recording(rng, int(label), shape.segments_per_file)
        mel[index] = audio.log_mel(sound, shape.segments_per_file)
    grid = (files, shape.long, shape.short)
    return mel.reshape(*grid, audio.MEL_BANDS, 1), file_label, segment_label.reshape(grid)


def file_classes(rng: np.random.Generator, files: int) -> np.ndarray:
    """Equal shares of the four classes, in random order, so that no seed leaves a class out."""
    return rng.permutation(np.arange(files) % len(audio.CLASSES)).astype(np.int64)


def write_part(path: Path, part: tuple[np.ndarray, np.ndarray, np.ndarray], mean: float, deviation: float) -> None:
    mel, file_label, segment_label = part
    with h5py.File(path, "w") as file:
        scaled = ((mel - mean) / deviation).astype(np.float32)
        file.create_dataset("mel", data=scaled, chunks=(1, *mel.shape[1:]))
        file.create_dataset("file_label", data=file_label)
        file.create_dataset("segment_label", data=segment_label)
        file.attrs["classes"] = ",".join(audio.CLASSES)
        file.attrs["mean_decibels"] = mean
        file.attrs["deviation_decibels"] = deviation


if __name__ == "__main__":
    sys.exit(cache.command_line(ensure, SIZES))

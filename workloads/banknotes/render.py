"""Draws banknotes of seven denominations on cluttered backgrounds, as arrays of uint8 colours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

CLASSES = ("1000", "2000", "5000", "10000", "20000", "50000", "100000")
PAPER = np.array(  # the colour of each denomination
    [
        [190, 195, 90],
        [140, 145, 160],
        [190, 125, 65],
        [140, 75, 165],
        [70, 165, 85],
        [60, 105, 195],
        [205, 65, 75],
    ],
    dtype=np.float32,
)
NOTE_HEIGHT, NOTE_WIDTH = 96, 208
LARGEST_OVERLAP = 0.15  # of two notes, as IoU of their boxes
GLYPHS = {
    "0": ("01110", "10001", "10011", "10101", "11001", "10001", "01110"),
    "1": ("00100", "01100", "10100", "00100", "00100", "00100", "11111"),
    "2": ("01110", "10001", "00001", "00110", "01000", "10000", "11111"),
    "5": ("11111", "10000", "11110", "00001", "00001", "10001", "01110"),
}


@dataclass(frozen=True)
class Scenery:
    """What the pictures look like, from easy to hard."""

    side: int  # of the square picture, in pixels
    most_notes: int
    clutter: int  # most shapes strewn over the background
    tilt: float  # largest angle of a note to the horizontal, in radians


@cache
def note_template(denomination: int) -> np.ndarray:
    """The flat note `[height, width, 3]`: paper, guilloche, portrait, security strip, numerals, border."""
    rows, columns = np.mgrid[0:NOTE_HEIGHT, 0:NOTE_WIDTH].astype(np.float32)
    note = np.broadcast_to(PAPER[denomination], (NOTE_HEIGHT, NOTE_WIDTH, 3)).copy()
    phase = 3 * np.sin(columns / (9 + 2 * denomination)) + 2 * np.cos(rows / (5 + denomination))
    lines = np.sin(rows * 0.9 + phase) * np.sin(columns * 0.35 - phase)
    note += 22 * lines[..., None] * np.array([1.0, 0.8, 1.1], dtype=np.float32)
    portrait = ((columns - 150) / 26) ** 2 + ((rows - 48) / 36) ** 2 < 1
    note[portrait] = 0.55 * note[portrait] + 0.45 * PAPER[(denomination + 3) % len(CLASSES)]
    note[:, 96:101] = np.where((np.arange(NOTE_HEIGHT) // 6 % 2)[:, None, None] == 0, 225, 90)
    numeral = numeral_mask(CLASSES[denomination], scale=3)
    height, width = numeral.shape
    note[10 : 10 + height, 8 : 8 + width][numeral] = 25
    note[-10 - height : -10, -8 - width : -8][numeral] = 240
    note[:3] = note[-3:] = note[:, :3] = note[:, -3:] = 0.5 * PAPER[denomination]
    return np.clip(note, 0, 255)


def numeral_mask(text: str, scale: int) -> np.ndarray:
    glyphs = [np.array([[cell == "1" for cell in row] for row in GLYPHS[digit]]) for digit in text]
    spaced = [np.pad(glyph, ((0, 0), (0, 1))) for glyph in glyphs]
    return np.kron(np.concatenate(spaced, axis=1), np.ones((scale, scale), dtype=bool))


def smooth_noise(rng: np.random.Generator, side: int, cells: int) -> np.ndarray:
    """Bilinear interpolation of a coarse random colour grid: `[side, side, 3]` in 0..1."""
    grid = rng.uniform(0, 1, (cells + 1, cells + 1, 3)).astype(np.float32)
    position = np.linspace(0, cells, side, endpoint=False, dtype=np.float32)
    low = position.astype(np.int64)
    part = position - low
    rows = grid[low] * (1 - part)[:, None, None] + grid[low + 1] * part[:, None, None]
    return rows[:, low] * (1 - part)[None, :, None] + rows[:, low + 1] * part[None, :, None]


def background(rng: np.random.Generator, scenery: Scenery) -> np.ndarray:
    side = scenery.side
    base = rng.uniform(40, 200, 3).astype(np.float32)
    image = base + 40 * (smooth_noise(rng, side, 3) - 0.5) + 45 * (smooth_noise(rng, side, 16) - 0.5)
    for _ in range(int(rng.integers(scenery.clutter // 3, scenery.clutter + 1))):
        paint_shape(rng, image, rng.uniform(0, side, 2), rng.uniform(0.04, 0.2, 2) * side)
    return image


def paint_shape(rng: np.random.Generator, image: np.ndarray, centre: np.ndarray, radius: np.ndarray) -> None:
    """A block or an ellipse of one muted colour, over whatever is there: clutter, or a finger on a note."""
    side = image.shape[0]
    low = np.clip(centre - radius, 0, side).astype(int)
    high = np.clip(centre + radius + 1, 0, side).astype(int)
    window = image[low[1] : high[1], low[0] : high[0]]
    colour = rng.uniform(60, 190) + rng.uniform(-30, 30, 3)
    if rng.uniform() < 0.5:
        window[:] = colour
        return
    rows, columns = np.mgrid[low[1] : high[1], low[0] : high[0]]
    inside = ((columns - centre[0]) / radius[0]) ** 2 + ((rows - centre[1]) / radius[1]) ** 2 < 1
    window[inside] = colour


def place_note(rng: np.random.Generator, scenery: Scenery, largest: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A random position: centre, the two half-axes as columns, and the box (x1, y1, x2, y2) in pixels."""
    side = scenery.side
    length = rng.uniform(0.6 * largest, largest) * side
    angle = rng.uniform(-scenery.tilt, scenery.tilt) + np.pi * rng.integers(0, 2)
    along = np.array([np.cos(angle), np.sin(angle)]) * length / 2
    across = np.array([-np.sin(angle), np.cos(angle)]) * length / 2 * NOTE_HEIGHT / NOTE_WIDTH
    half = np.abs(along) + np.abs(across)
    margin = np.minimum(0.85 * half, side / 2 - 1)  # a note may reach past the edge of the picture
    centre = rng.uniform(margin, side - margin)
    box = np.concatenate([np.clip(centre - half, 0, side), np.clip(centre + half, 0, side)])
    return centre, np.stack([along, across], axis=1), box


def draw_note(
    rng: np.random.Generator,
    image: np.ndarray,
    denomination: int,
    centre: np.ndarray,
    axes: np.ndarray,
    box: np.ndarray,
) -> None:
    """Sample the note's template through the inverse of its placement, inside its box alone."""
    x1, y1 = np.floor(box[:2]).astype(int)
    x2, y2 = np.ceil(box[2:]).astype(int)
    rows, columns = np.mgrid[y1:y2, x1:x2]
    offset = np.stack([columns + 0.5 - centre[0], rows + 0.5 - centre[1]], axis=-1)
    local = offset @ np.linalg.inv(axes).T  # both coordinates in -1..1 on the note
    inside = np.abs(local).max(axis=-1) <= 1
    column = np.clip((local[..., 0] + 1) / 2 * NOTE_WIDTH, 0, NOTE_WIDTH - 1).astype(np.int64)
    row = np.clip((local[..., 1] + 1) / 2 * NOTE_HEIGHT, 0, NOTE_HEIGHT - 1).astype(np.int64)
    light = rng.uniform(0.75, 1.15) + rng.uniform(-0.15, 0.15) * local[..., :1]
    colours = note_template(denomination)[row, column] * light
    image[y1:y2, x1:x2][inside] = colours[inside]


def overlap(box: np.ndarray, other: np.ndarray) -> float:
    shared = np.clip(np.minimum(box[2:], other[2:]) - np.maximum(box[:2], other[:2]), 0, None).prod()
    areas = (box[2:] - box[:2]).prod() + (other[2:] - other[:2]).prod()
    return float(shared / (areas - shared))


def scene(rng: np.random.Generator, scenery: Scenery) -> tuple[np.ndarray, np.ndarray]:
    """One picture `[side, side, 3]` uint8 and its labels `[notes, 5]`: class, cx, cy, w, h in 0..1."""
    image, side = background(rng, scenery), scenery.side
    notes = int(rng.integers(1, scenery.most_notes + 1))
    largest = 0.85 if notes == 1 else 0.6
    boxes: list[np.ndarray] = []
    labels: list[list[float]] = []
    for _ in range(notes):
        centre, axes, box = place_note(rng, scenery, largest)
        if any(overlap(box, other) > LARGEST_OVERLAP for other in boxes):
            continue
        denomination = int(rng.integers(len(CLASSES)))
        draw_note(rng, image, denomination, centre, axes, box)
        if rng.uniform() < 0.3:
            finger = rng.uniform(0.08, 0.18, 2) * (box[2:] - box[:2])
            paint_shape(rng, image, rng.uniform(box[:2], box[2:]), finger)
        boxes.append(box)
        middle, extent = (box[:2] + box[2:]) / 2 / side, (box[2:] - box[:2]) / side
        labels.append([denomination, *middle, *extent])
    return finish(rng, image), np.array(labels, dtype=np.float32).reshape(-1, 5)


def finish(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """Room light, a slight colour cast and sensor noise."""
    side = image.shape[0]
    slope = np.linspace(-1, 1, side, dtype=np.float32) * rng.uniform(-0.15, 0.15)
    image = image * (rng.uniform(0.8, 1.15) + slope[:, None, None]) * rng.uniform(0.94, 1.06, 3)
    noise = rng.standard_normal(image.shape, dtype=np.float32) * rng.uniform(2, 8)
    return np.clip(image + noise, 0, 255).astype(np.uint8)


def write_scenes(folder: str, seed: tuple[int, ...], indices: range, scenery: Scenery) -> None:
    """Write pictures and YOLO labels; each picture depends on its own index alone, not on the others."""
    images, labels = Path(folder) / "images", Path(folder) / "labels"
    for index in indices:
        image, notes = scene(np.random.default_rng([*seed, index]), scenery)
        np.save(images / f"{index:06d}.npy", image)
        lines = [f"{int(note[0])} " + " ".join(f"{value:.6f}" for value in note[1:]) for note in notes]
        (labels / f"{index:06d}.txt").write_text("\n".join(lines) + "\n")

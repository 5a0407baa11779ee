"""Spoken words as the keyword spotter of ELL reads them: mel features, made up. A word is a pattern with noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np

WORDS = ["yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go"]
RATE, AUDIO, FEATURES, WINDOW, SHIFT = 16000, 512, 40, 30, 512


def make(folder: Path) -> None:
    rng = np.random.default_rng(0)
    patterns = rng.normal(0, 1, (len(WORDS), WINDOW, FEATURES))
    (folder / "categories.txt").write_text("".join(f"{word}\n" for word in WORDS))
    for name, count in (("training", 2048), ("validation", 256), ("testing", 256)):
        labels = rng.integers(0, len(WORDS), count)
        features = patterns[labels] + rng.normal(0, 3, (count, WINDOW, FEATURES))
        np.savez(
            folder / f"{name}_list.npz",
            parameters=np.array([RATE, AUDIO, FEATURES, WINDOW, SHIFT]),
            features=features.reshape(count, -1).astype(np.float32),
            labels=np.array(WORDS)[labels],
        )

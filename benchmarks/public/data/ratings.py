"""Who took what, made up: people are of a few tastes, so it can be learned.

A line per step, user and item, from 1 on: made.txt.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np


def make(folder: Path, users: int = 1200, items: int = 600, tastes: int = 12) -> None:
    rng, lines = np.random.default_rng(0), []
    for user in range(1, users + 1):
        taste = rng.integers(tastes)
        for _ in range(rng.integers(8, 40)):
            if rng.random() < 0.1:
                taste = rng.integers(tastes)
            lines.append(f"{user} {rng.integers(items // tastes) * tastes + taste + 1}")
    (folder / "made.txt").write_text("\n".join(lines) + "\n")

"""Discharge cycles of a battery as CSV files, `train/` and `valid/`; the physics: battery_cycles.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import battery_cycles
import cache
from battery_cycles import Campaign

VERSION = 1

# All cover about an hour and a half; coarser steps keep the dynamics in view of a shorter lookback.
SIZES = {
    "tiny": Campaign(train_cycles=12, valid_cycles=4, rows=300, step_seconds=18.0),
    "small": Campaign(train_cycles=40, valid_cycles=8, rows=900, step_seconds=6.0),
    "report": Campaign(train_cycles=100, valid_cycles=12, rows=5400, step_seconds=1.0),
}

# Host memory to train naively, a quarter added. Tiny and small: peak of all processes (PSS), measured on 2 cores.
# Report, from shapes: 500,100 windows of 400 rows by 6 features are 4.8 GB, and three times that (measured: 3.1) while
# they are made; 0.3 GB for the process, 1 GB allowed for CUDA.
MEMORY_MB = {"tiny": 500, "small": 560, "report": 19_500}


def default_folder(size: str, seed: int = 0, root: Path | None = None) -> Path:
    return cache.folder("battery_lstm", size, seed, VERSION, root)


def ensure(size: str, seed: int = 0, root: Path | None = None) -> Path:
    """The folder with the data of this size and seed, generated when missing or damaged."""
    campaign = SIZES[size]

    def build(target: Path) -> None:
        battery_cycles.write_campaign(target, campaign, seed)

    return cache.make_once(default_folder(size, seed, root), build, campaign.bytes_needed)


if __name__ == "__main__":
    sys.exit(cache.command_line(ensure, tuple(SIZES)))

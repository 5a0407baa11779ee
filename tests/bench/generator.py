"""A scripted generator of data; it stops in the middle while a file named `hold-data` stands beside the workloads."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import cache

ROOT = Path(__file__).resolve().parents[1]
NAME = Path(__file__).resolve().parent.name
BYTES = {"tiny": 1000, "small": 2000, "report": 1 << 62}
MEMORY_MB = {"small": 1 << 40}


def ensure(size, seed=0, root=None):
    def build(folder):
        (folder / "half.txt").write_text("half")
        while (ROOT / "hold-data").exists():
            time.sleep(0.02)
        (folder / "numbers.txt").write_text(f"{size} {seed}")

    return cache.make_once(cache.folder(NAME, size, seed, 1, root), build, BYTES[size])


if __name__ == "__main__":
    sys.exit(cache.command_line(ensure, tuple(BYTES)))

"""MNIST in two folders, `Datasets` and `data`: Lightning's examples look for it in both."""

from __future__ import annotations

import shutil
from pathlib import Path

from . import mnist


def make(folder: Path) -> None:
    mnist.make(folder / "Datasets")
    shutil.copytree(folder / "Datasets", folder / "data")

"""Where compiled kernels and measured choices are kept between runs."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder by the platform's convention; it may not exist yet."""
    if os.environ.get("XDG_CACHE_HOME"):
        base = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "hotlap" / "kernels"


def _make(folder: Path) -> None:
    """Make a folder for this user alone, with the missing ones above it."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(0o700, exist_ok=True)


def written(path: Path, content: bytes) -> None:
    """Write the file whole or not at all; if it cannot be written, the next process does the work again."""
    with suppress(OSError):
        _make(path.parent)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)

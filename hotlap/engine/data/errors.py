"""What can be wrong with data, each as one clear line.

EngineError
├── EmptySplit, NoDevice     as the trainer raises them
└── DataError
    ├── DataUnreadable   a file is damaged, cut short, of another format or not there; names file and row
    ├── DataMismatch     parts that must have the same rows, shapes or types do not
    └── PackageMissing   an optional package is needed; the line says what to install
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from hotlap.engine.errors import EmptySplit, EngineError, NoDevice

__all__ = ["DataError", "DataMismatch", "DataUnreadable", "EmptySplit", "NoDevice", "PackageMissing", "optional"]


class DataError(EngineError):
    """Wrong input data, in one line."""


class DataUnreadable(DataError):
    """Names the file, the row where one was being read, and why."""

    def __init__(self, path: Path | str, why: str, row: int | None = None) -> None:
        place = f"{path}, row {row}" if row is not None else str(path)
        super().__init__(f"cannot read {place}: {why}")
        self.path, self.row, self.why = str(path), row, why


class DataMismatch(DataError):
    pass


class PackageMissing(DataError):
    pass


def optional(package: str, purpose: str) -> Any:
    """An optional package, imported when first needed."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise PackageMissing(f"{purpose} needs {name}; type: pip install {name}") from error

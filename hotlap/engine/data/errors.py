"""The errors about data, each with a message of one clear line.

EngineError
├── EmptySplit, NoDevice     as the trainer raises them
└── DataError
    ├── DataUnreadable   a file is missing, damaged, cut short or of another format; names file and row
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
    """The input data is wrong; the message says in one line how."""


class DataUnreadable(DataError):
    """The message names the file, the row if one was being read, and the reason."""

    def __init__(self, path: Path | str, why: str, row: int | None = None) -> None:
        place = f"{path}, row {row}" if row is not None else str(path)
        super().__init__(f"cannot read {place}: {why}")
        self.path, self.row, self.why = str(path), row, why


class DataMismatch(DataError):
    pass


class PackageMissing(DataError):
    pass


def optional(package: str, purpose: str) -> Any:
    """Import an optional package when it is first needed."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise PackageMissing(f"{purpose} needs {name}; type: pip install {name}") from error

"""What reading the code of a dataset has shown: that fetching is pure, and all that it depends on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CellType
from typing import Any

from hotlap.loading.purity.values import NOTHING, Value

MOST_SECONDS = 0.2  # of this thread: other programs may be busy


class Impure(Exception):
    """Why fetching is not known to be pure, with the line."""


@dataclass
class Study:
    """What fetching reads. Nothing here is kept longer than the reading takes: see State."""

    attributes: dict[tuple[int, str], tuple[Any, str]] = field(default_factory=dict)  # of instances
    names: dict[tuple[int, str], tuple[Mapping[str, Any], str]] = field(default_factory=dict)  # globals, class members
    cells: dict[int, CellType] = field(default_factory=dict)
    containers: dict[int, Any] = field(default_factory=dict)  # whose contents are not all plain
    texts: set[str] = field(default_factory=set)  # in the code: they may name a file
    opened: dict[tuple[int, str], tuple[Any, str]] = field(default_factory=dict)  # attributes set at the first fetch
    reads_files: bool = False
    may_draw: bool = False  # from the streams of torch, NumPy and random
    ordered: bool = False  # the last digits depend on the number of threads
    result: Value = NOTHING
    until: float = field(default_factory=lambda: time.thread_time() + MOST_SECONDS)

    def check_time(self) -> None:
        if time.thread_time() > self.until:
            raise Impure(f"reading its code takes more than {MOST_SECONDS} s")

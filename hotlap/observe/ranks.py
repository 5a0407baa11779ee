"""Tells which process of a distributed job this is."""

from __future__ import annotations

import os
from typing import Any


def rank_and_world(torch: Any) -> tuple[int, int]:
    """Return the rank and world size from torch.distributed if it is in use, else from the launcher's environment."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return _number("RANK", 0), _number("WORLD_SIZE", 1)


def _number(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else default

"""The repeated blocks of a model: two or more children of one class in a container."""

from __future__ import annotations

from collections import Counter
from typing import Any


def repeated(torch: Any, root: Any) -> list[Any]:
    """Return the outermost repeated blocks; blocks inside a block are computed again with it."""
    found: list[Any] = []
    _collect(torch, root, found)
    return found


def _collect(torch: Any, module: Any, found: list[Any]) -> None:
    children = [child for child in module.children() if any(True for _ in child.parameters())]
    count = Counter(type(child) for child in children if any(True for _ in child.children()))
    container = isinstance(module, torch.nn.Sequential | torch.nn.ModuleList)
    for child in children:
        if container and count[type(child)] >= 2:
            found.append(child)
        else:
            _collect(torch, child, found)

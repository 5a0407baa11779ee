"""Compilation by region: the blocks that a model repeats, each compiled by itself, and what is between them is not.

Blocks of one kind share their code, so a deep model compiles in the time of one block.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn

from hotlap.engine.forwards import forwards_replaced
from hotlap.engine.update import Found, LossOf

LISTS = (nn.ModuleList, nn.Sequential)


def blocks_of_lists(model: nn.Module) -> dict[str, nn.Module]:
    """Return what the lists of a model hold, by name: modules with parts of their own."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, LISTS):
            prefix = f"{name}." if name else ""
            found |= {f"{prefix}{part}": block for part, block in module.named_children() if _is_block(block)}
    return {name: block for name, block in found.items() if not _is_within(name, found)}


def _is_block(module: nn.Module) -> bool:
    return not isinstance(module, LISTS) and any(True for _ in module.children())


def _is_within(name: str, others: dict[str, nn.Module]) -> bool:
    return any(name.startswith(f"{other}.") for other in others)


def regions(model: nn.Module) -> list[nn.Module]:
    """Return the blocks whose class the model repeats."""
    found = list(blocks_of_lists(model).values())
    counts = Counter(type(block) for block in found)
    return [block for block in found if counts[type(block)] > 1]


class ByRegion:
    """A loss whose model runs its regions compiled; outside of a call the model is as it was."""

    def __init__(self, loss_of: LossOf, blocks: list[nn.Module]) -> None:
        self.loss_of = loss_of
        self.compiled = [(block, torch.compile(block.forward, dynamic=False)) for block in blocks]

    def __call__(self, item: Any) -> Found:
        with forwards_replaced(self.compiled):
            return self.loss_of(item)

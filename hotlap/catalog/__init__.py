"""The optimisations, one folder each. They are found by walking: adding one touches its folder and its test only."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from hotlap.catalog.entry import Entry
from hotlap.errors import UnknownOptimization


@cache
def entries() -> Mapping[str, Entry]:
    """By name, in the order in which they are applied."""
    found: dict[str, Entry] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:
            entry = getattr(importlib.import_module(f"{__name__}.{module.name}"), "ENTRY", None)
            if entry is not None:  # else it is a pattern of the source alone
                found[module.name.replace("_", "-")] = entry
    return MappingProxyType(dict(sorted(found.items(), key=lambda pair: (pair[1].order, pair[0]))))


def name_of(text: str) -> str:
    """The name of the entry meant by a name or a code."""
    by_code = {entry.code.lower(): name for name, entry in entries().items()}
    name = by_code.get(text.lower(), text.lower().replace("_", "-"))
    if name in entries():
        return name
    near = difflib.get_close_matches(name, [*entries(), *by_code], n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "see them all: hotlap list"
    raise UnknownOptimization(f"no optimisation is called {text}; {hint}")


def card(name: str) -> str:
    """The page about an entry."""
    return (Path(__path__[0]) / name.replace("-", "_") / "card.md").read_text(encoding="utf-8")


def in_conflict(one: str, other: str) -> bool:
    return other in entries()[one].conflicts or one in entries()[other].conflicts

"""The optimisations, one folder each. They are found by walking: adding one touches its folder and its test only."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from hotlap.catalog.entry import Entry
from hotlap.errors import UnknownOptimization

ALIKE = 0.7  # of 1: below, a suggestion would be a guess
SLIP = 2  # letters that a word may be longer or shorter
SHORTEST_START = 3


@cache
def entries() -> Mapping[str, Entry]:
    """By name, in the order in which they are applied."""
    found: dict[str, Entry] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:
            entry = getattr(importlib.import_module(f"{__name__}.{module.name}"), "ENTRY", None)
            if entry is not None:  # else it is a pattern of the source alone
                found[module.name.replace("_", "-")] = entry
    return MappingProxyType(in_order(found))


def in_order(found: Mapping[str, Entry]) -> dict[str, Entry]:
    """By stage, after what they name, and else by name."""

    def place(name: str) -> int:
        return 1 + max((place(before) for before in found[name].after), default=-1)

    names = sorted(found, key=lambda name: (found[name].stage, place(name), name))
    return {name: found[name] for name in names}


def name_of(text: str) -> str:
    """The name of the entry meant by a name or a code."""
    from hotlap.catalog import patterns  # only here: it reads source, which a program that is entered never needs

    by_code = {entry.code.lower(): name for name, entry in entries().items()}
    name = by_code.get(text.lower(), text.lower().replace("_", "-"))
    if name in entries():
        return name
    if (rule := patterns.name_of(text)) is not None:
        raise UnknownOptimization(f"{rule} is found in the source, not applied to a run; see: hotlap explain {rule}")
    near = [one.upper() if one in by_code else one for one in _nearest(name, [*entries(), *by_code])]
    hint = f"did you mean {' or '.join(near)}?" if near else "see them all: hotlap list"
    raise UnknownOptimization(f"no optimisation is called {text or repr(text)}; {hint}")


def _nearest(text: str, names: Iterable[str]) -> list[str]:
    """Names that a person may have meant: a slip of the pen in one of its words counts as one in the whole."""

    def likeness(name: str) -> float:
        parts = (name, *name.split("-"))
        alike = (name, *(part for part in parts if abs(len(part) - len(text)) <= SLIP))
        begun = any(part.startswith(text) for part in parts) and len(text) >= SHORTEST_START
        return 1.0 if begun else max(difflib.SequenceMatcher(None, text, part).ratio() for part in alike)

    ranked = sorted((-likeness(name), name) for name in names)
    return [name for score, name in ranked[:2] if -score >= ALIKE]


def card(name: str) -> str:
    """The page about an entry."""
    return (Path(__path__[0]) / name.replace("-", "_") / "card.md").read_text(encoding="utf-8")


def in_conflict(one: str, other: str) -> bool:
    return other in entries()[one].conflicts or one in entries()[other].conflicts

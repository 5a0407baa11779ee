"""The optimisations, one folder each. Folders are discovered, so adding one touches only its folder and its test."""

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

ALIKE = 0.7  # similarity ratio below which a suggestion would be a guess
SLIP = 2  # letters by which a word may be longer or shorter
SHORTEST_START = 3


@cache
def entries() -> Mapping[str, Entry]:
    """Return the entries by name, in the order in which they are applied."""
    found: dict[str, Entry] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:
            entry = getattr(importlib.import_module(f"{__name__}.{module.name}"), "ENTRY", None)
            if entry is not None:  # else it is a pattern of the source alone
                found[module.name.replace("_", "-")] = entry
    return MappingProxyType(in_order(found))


def in_order(found: Mapping[str, Entry]) -> dict[str, Entry]:
    """Sort the entries by stage, then after those they name in `after`, then by name."""

    def place(name: str) -> int:
        return 1 + max((place(before) for before in found[name].after), default=-1)

    names = sorted(found, key=lambda name: (found[name].stage, place(name), name))
    return {name: found[name] for name in names}


def name_of(text: str) -> str:
    """Return the name of the entry that `text` means, given as a name or a code."""
    by_code = {entry.code.lower(): name for name, entry in entries().items()}
    name = by_code.get(text.lower(), text.lower().replace("_", "-"))
    if name in entries():
        return name
    from hotlap.catalog import patterns  # it reads source, which a training process never needs

    if (rule := patterns.name_of(text)) is not None:
        raise UnknownOptimization(f"{rule} is found in the source, not applied to a run; see: hotlap explain {rule}")
    near = [
        candidate.upper() if candidate in by_code else candidate for candidate in _nearest(name, [*entries(), *by_code])
    ]
    hint = f"did you mean {' or '.join(near)}?" if near else "see them all: hotlap list"
    raise UnknownOptimization(f"no optimisation is called {text or repr(text)}; {hint}")


def _nearest(text: str, names: Iterable[str]) -> list[str]:
    """Return up to two names the user may have meant; a typo in one word of a name counts as one in the whole name."""

    def likeness(name: str) -> float:
        words = (name, *name.split("-"))
        alike = (name, *(word for word in words if abs(len(word) - len(text)) <= SLIP))
        begun = any(word.startswith(text) for word in words) and len(text) >= SHORTEST_START
        return 1.0 if begun else max(difflib.SequenceMatcher(None, text, word).ratio() for word in alike)

    ranked = sorted((-likeness(name), name) for name in names)
    return [name for score, name in ranked[:2] if -score >= ALIKE]


def card(name: str) -> str:
    """Return the text of an entry's card.md."""
    return (Path(__path__[0]) / name.replace("-", "_") / "card.md").read_text(encoding="utf-8")


def in_conflict(name: str, other_name: str) -> bool:
    return other_name in entries()[name].conflicts or name in entries()[other_name].conflicts

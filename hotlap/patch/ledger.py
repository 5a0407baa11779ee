"""Every change we make to someone else's object, and the way back.

A *site* is one attribute of one object. It keeps the raw original and a stack of layers, each owned by a ledger; what
is installed is always rebuilt from the original up, so ledgers may be closed in any order. When another tool wrapped
on top of us, its reference to our wrapper is pointed at what lies below, and our wrapper is gone from the chain.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

MISSING: Any = object()
Layer = Callable[[Any], Any]  # what is below → what stands in its place

_sites: dict[tuple[int, str], Site] = {}


class Site:
    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.original = vars(owner).get(name, MISSING)  # MISSING: inherited, so the way back is to delete
        self.base = getattr(owner, name) if self.original is MISSING else self.original
        self.layers: list[tuple[Ledger, Layer]] = []
        self.installed: Any = MISSING

    def add(self, ledger: Ledger, layer: Layer) -> None:
        self.layers.append((ledger, layer))
        self._rebuild()

    def remove(self, ledger: Ledger) -> None:
        self.layers = [(owner, layer) for owner, layer in self.layers if owner is not ledger]
        self._rebuild()
        if not self.layers:
            _sites.pop((id(self.owner), self.name), None)

    def hide(self) -> None:
        """Take our wrapper out for a while; a foreign wrapper on top keeps its place."""
        if self.installed is not MISSING and vars(self.owner).get(self.name, MISSING) is self.installed:
            self._put(self.original)

    def show(self) -> None:
        if self.installed is not MISSING and vars(self.owner).get(self.name, MISSING) is self.original:
            self._put(self.installed)

    def _rebuild(self) -> None:
        before, new = self.installed, self.base
        for _, layer in self.layers:
            new = layer(new)
        self.installed = new if self.layers else MISSING
        current = vars(self.owner).get(self.name, MISSING)
        if before is MISSING or current is before or current is self.original:
            self._put(new if self.layers else self.original)
        else:
            _relink(before, new)

    def _put(self, value: Any) -> None:
        if value is not MISSING:
            setattr(self.owner, self.name, value)
        elif self.name in vars(self.owner):
            delattr(self.owner, self.name)


class Ledger:
    def __init__(self) -> None:
        self.closed = False
        self._mine: list[Site] = []
        self._undo: list[Callable[[], Any]] = []

    def wrap(self, owner: Any, name: str, layer: Layer) -> None:
        """Replace an attribute by layer(attribute) until this ledger closes."""
        site = _sites.setdefault((id(owner), name), Site(owner, name))
        if site not in self._mine:
            self._mine.append(site)
        site.add(self, layer)

    def later(self, undo: Callable[[], Any]) -> None:
        """Remember how to take back a change that is not an attribute (a hook, a callback)."""
        self._undo.append(undo)

    def release(self, owner: Any, name: str) -> None:
        """Take back one attribute now."""
        site = _sites.get((id(owner), name))
        if site is not None and site in self._mine:
            self._mine.remove(site)
            site.remove(self)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        self.hide()
        try:
            yield
        finally:
            self.show()

    def hide(self) -> None:
        for site in self._mine:
            site.hide()

    def show(self) -> None:
        for site in self._mine:
            site.show()

    def close(self) -> None:
        self.closed = True
        while self._undo:
            self._undo.pop()()
        while self._mine:
            self._mine.pop().remove(self)


def _relink(old: Any, new: Any) -> None:
    """Point whoever still holds our wrapper at what replaces it: closures, `__wrapped__`, saved originals."""
    for holder in gc.get_referrers(old):
        if isinstance(holder, types.CellType):
            holder.cell_contents = new
        elif isinstance(holder, dict):
            for key in [key for key, value in holder.items() if value is old]:
                holder[key] = new
        elif getattr(holder, "__wrapped__", None) is old:
            holder.__wrapped__ = new

"""An arm is the set of optimisations that are on at one time. Between arms, only the differences are switched.

An entry that is slow to start, such as a captured step, is paused rather than closed. It has one instance per arm,
because it was made with that arm's other entries on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from hotlap.records.plan import Outcome, Status


class Switch(Protocol):
    """An entry that has been applied; `Site` is the real one."""

    name: str
    closed: bool
    paused: bool

    @property
    def has_reported(self) -> bool: ...

    @property
    def outcome(self) -> Outcome: ...

    def close(self) -> None: ...


Arm = frozenset[str]  # names of entries
Begin = Callable[[str, Arm], Any]  # applies the named entry as part of the arm, and returns its Site


class Arms:
    def __init__(self, begin: Begin, order: Iterable[str], keeps: Callable[[str], bool]) -> None:
        """`keeps(name)` says whether an entry is paused rather than closed when it is switched off."""
        self._begin, self._order, self._keeps = begin, list(order), keeps
        self._on: dict[str, Switch] = {}
        self._paused: dict[tuple[str, Arm], Switch] = {}
        self.now: Arm = frozenset()
        self.seen: dict[str, Switch] = {}  # the latest site of each name

    def switch(self, arm: Arm) -> None:
        apart = [name for name in self._order if self._is_apart(name, arm)]
        for name in reversed(self._order):
            if name in self._on and (name not in arm or name in apart):
                self._off(name)
        self.now = arm
        for name in self._order:
            if name in arm and name not in self._on:
                self._on[name] = self._back_on(name, arm)

    def _is_apart(self, name: str, arm: Arm) -> bool:
        """Return whether the entry is on in both arms but was made with other entries on."""
        return name in self._on and name in arm and arm != self.now and self._keeps(name)

    def _off(self, name: str) -> None:
        site = self._on.pop(name)
        if self._keeps(name) and not site.closed:
            site.paused = True
            self._paused[name, self.now] = site
        else:
            site.close()

    def _back_on(self, name: str, arm: Arm) -> Switch:
        site = self._paused.pop((name, arm), None)
        if site is not None and not site.closed:
            site.paused = False
        else:
            site = self._begin(name, arm)
        self.seen[name] = site
        return site

    def applied(self) -> Arm:
        """Return the entries of this arm that have an effect."""
        return frozenset(name for name, site in self._on.items() if site.outcome.status == Status.APPLIED)

    def pending(self) -> bool:
        """Return whether an entry has not reported its outcome yet."""
        return any(not site.has_reported and not site.closed for site in self._on.values())

    def settle_on(self, arm: Arm) -> None:
        """Shrink the current arm to this one by closing the entries without effect."""
        for name in [name for name in self._on if name not in arm]:
            self._on.pop(name).close()
        self.now = arm

    def let_go(self) -> None:
        """Close all paused entries, which are not needed again."""
        for site in self._paused.values():
            site.close()
        self._paused.clear()

    @property
    def sites(self) -> list[Switch]:
        return [*self._on.values(), *self._paused.values()]

    def close(self) -> None:
        self.let_go()
        for name in reversed(self._order):
            if name in self._on:
                self._on.pop(name).close()
        self.now = frozenset()

"""The optimisations that are on at a time: an arm. From one arm to another only what differs is switched.

What takes long to begin, such as a recording of the step, is paused instead of ended, one of it for each arm: it was
made with what else is on there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from hotlap.records.plan import Outcome, Status


class Switch(Protocol):
    """One entry at work."""

    name: str
    closed: bool
    paused: bool

    @property
    def has_told(self) -> bool: ...

    @property
    def outcome(self) -> Outcome: ...

    def close(self) -> None: ...


Arm = frozenset[str]  # names of entries
Begin = Callable[[str, Arm], Any]  # applies one, to be among others, and gives its Site


class Arms:
    def __init__(self, begin: Begin, order: Iterable[str], keeps: Callable[[str], bool]) -> None:
        """`keeps(name)`: it is paused, not ended, when it is switched off."""
        self._begin, self._order, self._keeps = begin, list(order), keeps
        self._on: dict[str, Switch] = {}
        self._paused: dict[tuple[str, Arm], Switch] = {}
        self.now: Arm = frozenset()
        self.seen: dict[str, Switch] = {}  # the last of each name

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
        """It is on in both, but was made with others beside it."""
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
        """What of it has an effect."""
        return frozenset(name for name, site in self._on.items() if site.outcome.status == Status.APPLIED.value)

    def pending(self) -> bool:
        """Whether one of them has not said yet what becomes of it."""
        return any(not site.has_told and not site.closed for site in self._on.values())

    def settle_on(self, arm: Arm) -> None:
        """The arm, of which some had no effect, is this one from now on."""
        for name in [name for name in self._on if name not in arm]:
            self._on.pop(name).close()
        self.now = arm

    def let_go(self) -> None:
        """What is paused is not needed again."""
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

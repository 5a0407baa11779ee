"""Accounts for the training thread's time: one running total per phase, each nanosecond in exactly one of them."""

from __future__ import annotations

from hotlap.records.observation import DATA, EVALUATION, GARBAGE, PHASES, REST

_DATA, _REST, _EVALUATION = PHASES.index(DATA), PHASES.index(REST), PHASES.index(EVALUATION)
_GARBAGE = PHASES.index(GARBAGE)


class Clock:
    """A stack of phases that is given the time of each change. Inner phases take their time out of outer ones.

    While details are left out, only waits for data, evaluation and garbage collection are recorded; the rest of that
    time is *unseen*. `spread` divides it among the phases in proportion to what was seen, separately inside and outside
    the loader.
    """

    __slots__ = ("_current", "_evaluating", "_since", "_stack", "detailed", "fed", "names", "totals", "unseen")

    def __init__(self, now: int) -> None:
        self.names = list(PHASES)
        self.totals = [0] * len(PHASES)
        self.fed = [0] * len(PHASES)  # the part of the totals spent inside the loader
        self.unseen = [0, 0]  # outside and inside the loader
        self.detailed = True
        self._stack: list[int] = []
        self._current = _REST
        self._evaluating = False
        self._since = now

    def phase(self, name: str) -> int:
        """Return the index of a phase; a new one (a user's span) is added."""
        if name not in self.names:
            self.names.append(name)
            self.totals.append(0)
            self.fed.append(0)
        return self.names.index(name)

    def enter(self, phase: int, now: int) -> None:
        self.lap(now)
        self._stack.append(self._current)
        self._current = phase

    def leave(self, phase: int, now: int) -> None:
        """End the phase; inner phases whose end an exception skipped end with it."""
        if not self.inside(phase):
            return
        self.lap(now)
        while self._current != phase:
            self._current = self._stack.pop()
        self._current = self._stack.pop() if self._stack else _REST

    def evaluate(self, evaluating: bool, now: int) -> None:
        """Begin or end evaluation, during which every phase counts as evaluation."""
        if evaluating != self._evaluating:
            self.lap(now)
            self._evaluating = evaluating

    def lap(self, now: int) -> None:
        """Bring the totals up to now."""
        spent, self._since = now - self._since, now
        if self._evaluating:
            self.totals[_EVALUATION] += spent
        elif not self.detailed and self._current != _GARBAGE:
            self.unseen[self.inside(_DATA)] += spent
        else:
            self.totals[self._current] += spent
            if self.inside(_DATA):
                self.fed[self._current] += spent

    def look(self, detailed: bool, now: int) -> None:
        """Record details from now on, or leave them out."""
        self.lap(now)
        self.detailed = detailed

    def reset(self, now: int) -> None:
        """Forget open phases, because the training thread turned out to be a different one."""
        self._stack.clear()
        self._current = _REST
        self._since = now

    def copy(self) -> Clock:
        other = Clock(self._since)
        other.names, other.totals, other.fed = list(self.names), list(self.totals), list(self.fed)
        other.unseen, other.detailed = list(self.unseen), self.detailed
        other._stack, other._current, other._evaluating = list(self._stack), self._current, self._evaluating
        return other

    def inside(self, phase: int) -> bool:
        return self._current == phase or phase in self._stack

    @property
    def current(self) -> str:
        return self.names[_EVALUATION if self._evaluating else self._current]


def spread(totals: list[int], fed: list[int], unseen: list[int]) -> list[float]:
    """Return the totals with the unseen time divided among the seen phases, in proportion."""
    result = [float(total) for total in totals]
    outside = [total - inside for total, inside in zip(totals, fed, strict=True)]
    for time, seen, otherwise in zip(unseen, (outside, fed), (_REST, _DATA), strict=True):
        known = {i: spent for i, spent in enumerate(seen) if spent > 0 and i not in (_EVALUATION, _GARBAGE)}
        whole = sum(known.values())
        for i, spent in (known if whole else {otherwise: 1}).items():
            result[i] += time * spent / (whole or 1)
    return result

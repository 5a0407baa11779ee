"""Where the training thread's time goes: one running total per phase, each nanosecond in exactly one of them."""

from __future__ import annotations

from hotlap.model.observation import EVALUATION, PHASES, REST

_REST, _EVALUATION = PHASES.index(REST), PHASES.index(EVALUATION)


class Clock:
    """A stack of phases, told the time of each change. Inner phases take their time out of outer ones."""

    __slots__ = ("_current", "_evaluating", "_since", "_stack", "names", "totals")

    def __init__(self, now: int) -> None:
        self.names = list(PHASES)
        self.totals = [0] * len(PHASES)
        self._stack: list[int] = []
        self._current = _REST
        self._evaluating = False
        self._since = now

    def phase(self, name: str) -> int:
        """The index of a phase, made when new (a user's span)."""
        if name not in self.names:
            self.names.append(name)
            self.totals.append(0)
        return self.names.index(name)

    def enter(self, phase: int, now: int) -> None:
        self.lap(now)
        self._stack.append(self._current)
        self._current = phase

    def leave(self, phase: int, now: int) -> None:
        """Ends the phase; phases inside it that an exception skipped end with it."""
        if not self.inside(phase):
            return
        self.lap(now)
        while self._current != phase:
            self._current = self._stack.pop()
        self._current = self._stack.pop() if self._stack else _REST

    def evaluate(self, evaluating: bool, now: int) -> None:
        """While evaluating, every phase counts as evaluation."""
        if evaluating != self._evaluating:
            self.lap(now)
            self._evaluating = evaluating

    def lap(self, now: int) -> None:
        """Bring the totals up to now."""
        self.totals[_EVALUATION if self._evaluating else self._current] += now - self._since
        self._since = now

    def reset(self, now: int) -> None:
        """Forget what is open: the training thread turned out to be another one."""
        self._stack.clear()
        self._current = _REST
        self._since = now

    def copy(self) -> Clock:
        other = Clock(self._since)
        other.names, other.totals = list(self.names), list(self.totals)
        other._stack, other._current, other._evaluating = list(self._stack), self._current, self._evaluating
        return other

    def inside(self, phase: int) -> bool:
        return self._current == phase or phase in self._stack

    @property
    def current(self) -> str:
        return self.names[_EVALUATION if self._evaluating else self._current]

"""Where the training thread's time goes: one running total per phase, each nanosecond in exactly one of them."""

from __future__ import annotations

from threading import get_ident
from time import perf_counter_ns

from hotlap.model.observation import EVALUATION, PHASES, REST

_REST, _EVALUATION = PHASES.index(REST), PHASES.index(EVALUATION)


class Clock:
    """A stack of phases on one thread. Inner phases take their time out of outer ones."""

    __slots__ = ("_current", "_evaluating", "_since", "_stack", "names", "thread", "totals")

    def __init__(self) -> None:
        self.names = list(PHASES)
        self.totals = [0] * len(PHASES)
        self.thread = get_ident()
        self._stack: list[int] = []
        self._current = _REST
        self._evaluating = False
        self._since = perf_counter_ns()

    def phase(self, name: str) -> int:
        """The index of a phase, made when new (a user's span)."""
        if name not in self.names:
            self.names.append(name)
            self.totals.append(0)
        return self.names.index(name)

    def enter(self, phase: int) -> None:
        if get_ident() != self.thread:
            return
        now = perf_counter_ns()
        self.totals[_EVALUATION if self._evaluating else self._current] += now - self._since
        self._since = now
        self._stack.append(self._current)
        self._current = phase

    def leave(self, phase: int) -> None:
        """Ends the phase; phases inside it that an exception skipped end with it."""
        if get_ident() != self.thread or (self._current != phase and phase not in self._stack):
            return
        now = perf_counter_ns()
        self.totals[_EVALUATION if self._evaluating else self._current] += now - self._since
        self._since = now
        while self._current != phase:
            self._current = self._stack.pop()
        self._current = self._stack.pop() if self._stack else _REST

    def evaluate(self, evaluating: bool) -> None:
        """While evaluating, every phase counts as evaluation."""
        if evaluating != self._evaluating and get_ident() == self.thread:
            self.lap()
            self._evaluating = evaluating

    def lap(self) -> int:
        """Bring the totals up to now, and say when that is."""
        now = perf_counter_ns()
        self.totals[_EVALUATION if self._evaluating else self._current] += now - self._since
        self._since = now
        return now

    def move_to(self, thread: int) -> None:
        """The training thread turned out to be another one."""
        self.thread = thread
        self._stack.clear()
        self._current = _REST
        self._since = perf_counter_ns()

    @property
    def current(self) -> str:
        return self.names[_EVALUATION if self._evaluating else self._current]

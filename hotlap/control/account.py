"""The time budget for trials: 1 second, plus 0.7 % of the first minute of training and 2 % of what follows; up to
3 seconds plus 5 % once steps have gained more than that, or the training began earlier than without hotlap. A trial
that the budget does not cover yet waits.

With the start of hotlap itself, a program for which nothing helps then reaches 0.97 of its speed over its first minute.

A step is charged the time it takes beyond what the unchanged program would have taken.
"""

from __future__ import annotations

from collections.abc import Callable

START, EARLY_SHARE, SHARE = 1.0, 0.007, 0.02  # seconds, and of the time since the first step: early and later on
EARLY = 60.0  # seconds
MOST_START, MOST_SHARE = 3.0, 0.05  # with what faster steps or an earlier start have saved


class Account:
    def __init__(self, saved: Callable[[], float] = lambda: 0.0) -> None:
        """`saved()` says how many seconds earlier than without hotlap the training began."""
        self._saved, self._granted = saved, 0.0
        self._first: float | None = None
        self._settled = self._gained = 0.0
        self._open: float | None = None  # of the trial under way: faster steps offset slower ones, and nothing else

    def begin(self, now: float) -> None:
        self._first = now

    def grant(self, seconds: float) -> None:
        """Allow so many more seconds, in a process that exists for trials."""
        self._granted += seconds

    def open(self) -> None:
        self._open = 0.0

    def charge(self, seconds: float) -> None:
        """Charge the seconds by which a step exceeded the time it would have taken without us."""
        if self._open is not None:
            self._open += seconds

    def pay_back(self, seconds: float) -> None:
        """Refund seconds that were charged but turned out not to be our cost."""
        self._settled -= min(seconds, self._settled)

    def gain(self, seconds: float) -> None:
        if self._open is None:
            self._gained += seconds

    def close(self) -> float:
        """End the trial under way and return its cost in seconds."""
        cost = self.spent - self._settled
        self._settled, self._open = self.spent, None
        return cost

    @property
    def spent(self) -> float:
        return self._settled + max(0.0, self._open or 0.0)

    def left(self, now: float) -> float:
        since = 0.0 if self._first is None else now - self._first
        usual = START + EARLY_SHARE * min(since, EARLY) + SHARE * max(0.0, since - EARLY)
        allowed = min(usual + self._gained + self._saved(), MOST_START + MOST_SHARE * since)
        return allowed + self._granted - self.spent

    def is_overdrawn(self, now: float) -> bool:
        """Return whether the trial under way has spent more than the budget."""
        return self._open is not None and self.left(now) < 0

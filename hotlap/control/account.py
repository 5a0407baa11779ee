"""The time budget for trials: 1.5 seconds plus 2 % of the time since the first step; up to 3 seconds plus 5 % once
steps have gained more than that. A trial that the budget does not cover yet waits.

A step is charged the time it takes beyond what the unchanged program would have taken.
"""

from __future__ import annotations

START, SHARE = 1.5, 0.02  # seconds, and of the time since the first step
MORE_START, MORE_SHARE = 1.5, 0.03  # at most, out of the time that faster steps have saved


class Account:
    def __init__(self) -> None:
        self._first: float | None = None
        self._settled = self._gained = 0.0
        self._open: float | None = None  # of the trial under way: faster steps offset slower ones, and nothing else

    def begin(self, now: float) -> None:
        self._first = now

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
        return START + SHARE * since + min(self._gained, MORE_START + MORE_SHARE * since) - self.spent

    def is_overdrawn(self, now: float) -> bool:
        """Return whether the trial under way has spent more than the budget."""
        return self._open is not None and self.left(now) < 0

"""What trying may cost: 1.5 seconds and 2 % of the time since the first step; where steps have gained more than that
already, up to 3 seconds and 5 %. What cannot be afforded yet waits.

A step costs what it takes longer than the program as it is would have taken.
"""

from __future__ import annotations

START, SHARE = 1.5, 0.02  # seconds, and of the time since the first step
MORE_START, MORE_SHARE = 1.5, 0.03  # at most, of what steps were faster than the program's own


class Account:
    def __init__(self) -> None:
        self._first: float | None = None
        self._settled = self._gained = 0.0
        self._open: float | None = None  # of a trial under way: faster steps make up for slower ones, but not for more

    def begin(self, now: float) -> None:
        self._first = now

    def open(self) -> None:
        self._open = 0.0

    def charge(self, seconds: float) -> None:
        """Seconds that a step took longer than it would have without us."""
        if self._open is not None:
            self._open += seconds

    def pay_back(self, seconds: float) -> None:
        """Of what was charged: it turned out not to be ours."""
        self._settled -= min(seconds, self._settled)

    def gain(self, seconds: float) -> None:
        if self._open is None:
            self._gained += seconds

    def close(self) -> float:
        """What the trial has cost."""
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
        """By the trial under way."""
        return self._open is not None and self.left(now) < 0

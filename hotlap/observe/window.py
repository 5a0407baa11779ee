"""Decides when warm-up ends and when enough was measured. Plain arithmetic on step times, so that it can be tested."""

from __future__ import annotations

from statistics import median

MINIMUM_WARMUP = 5
LONGEST_WARMUP_STEPS, LONGEST_WARMUP_SECONDS = 60, 20.0
STEADY_OVER = 4  # steps in a row
STEADY_WITHIN = 1.3  # times the fastest stretch so far
MOST_STEPS = 5000

# Enough means this many seconds and this many steps, whichever pair is reached first.
ENOUGH = ((3.0, 200), (6.0, 30), (20.0, 10), (40.0, 1))


class WarmupDetector:
    """Ends warm-up when the last few steps are about as fast as the fastest stretch before them."""

    def __init__(self, requested: int | None) -> None:
        self._requested = requested
        self._seconds: list[float] = []
        self._fastest = float("inf")
        self.settled = requested is not None

    @property
    def steps(self) -> int:
        return len(self._seconds)

    @property
    def typical(self) -> float:
        """Return the seconds of a recent step."""
        return median(self._seconds[-STEADY_OVER:]) if self._seconds else 0.0

    def over(self, seconds: float) -> bool:
        """Add a step that took this long; return whether warm-up has ended with it."""
        self._seconds.append(seconds)
        if self._requested is not None:
            return len(self._seconds) >= self._requested
        recent = median(self._seconds[-STEADY_OVER:])
        if len(self._seconds) >= STEADY_OVER:
            self._fastest = min(self._fastest, recent)
        self.settled = len(self._seconds) >= MINIMUM_WARMUP and recent <= STEADY_WITHIN * self._fastest
        return self.settled or self._at_limit()

    def _at_limit(self) -> bool:
        # The first step holds start-up work of any length, so it does not count towards the limit.
        return len(self._seconds) >= LONGEST_WARMUP_STEPS or sum(self._seconds[1:]) >= LONGEST_WARMUP_SECONDS


def enough(steps: int, seconds: float, requested: int | None) -> bool:
    """Whether a window of this many steps over this many seconds is enough."""
    if requested is not None:
        return steps >= requested
    return steps >= MOST_STEPS or any(seconds >= time and steps >= least for time, least in ENOUGH)


def planned_steps(typical: float, requested: int | None) -> int:
    """Return how many steps the window will have, at least, if a step takes `typical` seconds."""
    seconds, least = ENOUGH[0]
    return requested or min(MOST_STEPS, max(least, int(seconds / max(1e-6, typical))))


def progress(steps: int, seconds: float, requested: int | None) -> float:
    """Return how much of the window is done, 0 to 1."""
    if requested is not None:
        return min(1.0, steps / max(1, requested))
    return min(1.0, max(steps / MOST_STEPS, *(min(seconds / time, steps / least) for time, least in ENOUGH)))

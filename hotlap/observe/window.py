"""When warming up ends and when enough has been measured. Plain arithmetic on step times, so that it can be tested."""

from __future__ import annotations

from statistics import median

MINIMUM_WARMUP = 5
LONGEST_WARMUP_STEPS, LONGEST_WARMUP_SECONDS = 60, 20.0
STEADY_OVER = 4  # steps in a row
STEADY_WITHIN = 1.3  # times the fastest stretch so far
MOST_STEPS = 5000

# Enough is: so many seconds and so many steps, whichever pair comes first.
ENOUGH = ((3.0, 200), (6.0, 30), (20.0, 10), (40.0, 1))


class WarmupDetector:
    """Warm-up is over when the last few steps are about as fast as the fastest stretch before them."""

    def __init__(self, asked: int | None) -> None:
        self._asked = asked
        self._seconds: list[float] = []
        self._fastest = float("inf")
        self.settled = asked is not None

    @property
    def steps(self) -> int:
        return len(self._seconds)

    @property
    def typical(self) -> float:
        """Seconds of a recent step."""
        return median(self._seconds[-STEADY_OVER:]) if self._seconds else 0.0

    def over(self, seconds: float) -> bool:
        """One more step took so long: has warming up ended with it?"""
        self._seconds.append(seconds)
        if self._asked is not None:
            return len(self._seconds) >= self._asked
        recent = median(self._seconds[-STEADY_OVER:])
        if len(self._seconds) >= STEADY_OVER:
            self._fastest = min(self._fastest, recent)
        self.settled = len(self._seconds) >= MINIMUM_WARMUP and recent <= STEADY_WITHIN * self._fastest
        return self.settled or self._at_limit()

    def _at_limit(self) -> bool:
        # The first step holds start-up work of any length and says nothing about patience.
        return len(self._seconds) >= LONGEST_WARMUP_STEPS or sum(self._seconds[1:]) >= LONGEST_WARMUP_SECONDS


def enough(steps: int, seconds: float, asked: int | None) -> bool:
    """Whether a window of so many steps over so many seconds will do."""
    if asked is not None:
        return steps >= asked
    return steps >= MOST_STEPS or any(seconds >= time and steps >= least for time, least in ENOUGH)


def planned_steps(typical: float, asked: int | None) -> int:
    """How many steps of so many seconds the window will have, at least."""
    seconds, least = ENOUGH[0]
    return asked or min(MOST_STEPS, max(least, int(seconds / max(1e-6, typical))))


def progress(steps: int, seconds: float, asked: int | None) -> float:
    """How much of the window is done, 0 to 1."""
    if asked is not None:
        return min(1.0, steps / max(1, asked))
    return min(1.0, max(steps / MOST_STEPS, *(min(seconds / time, steps / least) for time, least in ENOUGH)))

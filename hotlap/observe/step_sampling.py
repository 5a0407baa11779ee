"""Selects the steps of the window that are recorded in detail.

Recording every part of a step costs some tens of µs, whatever its length: nothing for a long step, a percent of a short
one. So only some of the short steps are recorded in detail, drawn at random (a fixed rhythm could beat with the
program's own, say a stall every second batch). The ends, the waits for data and the losses are known for all steps.
"""

from __future__ import annotations

import math
from random import Random

SECONDS_OF_DETAIL = (
    120e-6  # per step, with room for programs of many syncs: benchmarks/observing/overhead.py finds 41 and 45 µs
)
ALLOWED = 0.004  # of the step
FEWEST = 60  # steps recorded in detail, if the window has that many


def share_of_steps(step_seconds: float, planned_steps: int) -> float:
    """Return the share of steps to record in detail, 0 to 1."""
    affordable = ALLOWED * step_seconds / SECONDS_OF_DETAIL
    return min(1.0, max(affordable, FEWEST / max(1, planned_steps)))


class StepSampling:
    """Draws alternating runs of steps recorded in detail and steps that are not."""

    def __init__(self, share: float, seed: int = 0) -> None:
        self.share = share
        self._random = Random(seed)  # a stream of hotlap's own, so the program's is not touched
        self.detailed = self._random.random() < share

    def run_length(self) -> int | None:
        """Return the steps until sampling switches; None if it never does."""
        stops = 1.0 - self.share if self.detailed else self.share
        if stops <= 0.0:
            return None
        if stops >= 1.0:
            return 1
        return 1 + int(math.log(1.0 - self._random.random()) / math.log(1.0 - stops))

    def switch(self) -> None:
        self.detailed = not self.detailed

"""Which steps of the window are looked into.

Writing down every part of a step costs some tens of µs, whatever its length: nothing for a long step, a percent of a
short one. So of short steps only some are looked into, drawn at random (a fixed rhythm could beat with the program's
own, say a stall every second batch). Of all steps the ends, the waits for data and the losses are known.
"""

from __future__ import annotations

import math
from random import Random

SECONDS_OF_DETAIL = 120e-6  # per step, with room for programs of many syncs: benchmarks/overhead.py finds 41 and 45 µs
ALLOWED = 0.004  # of the step
FEWEST = 60  # steps looked into, where the window has so many


def share_of_steps(step_seconds: float, planned_steps: int) -> float:
    """How many of the steps to look into, 0 to 1."""
    affordable = ALLOWED * step_seconds / SECONDS_OF_DETAIL
    return min(1.0, max(affordable, FEWEST / max(1, planned_steps)))


class StepSampling:
    """Draws the runs of steps that are looked into and of those that are not."""

    def __init__(self, share: float, seed: int = 0) -> None:
        self.share = share
        self._random = Random(seed)  # our own: the program's stream is not touched
        self.detailed = self._random.random() < share

    def run_length(self) -> int | None:
        """Steps until the other kind has its turn; None when it never has."""
        stops = 1.0 - self.share if self.detailed else self.share
        if stops <= 0.0:
            return None
        if stops >= 1.0:
            return 1
        return 1 + int(math.log(1.0 - self._random.random()) / math.log(1.0 - stops))

    def switch(self) -> None:
        self.detailed = not self.detailed

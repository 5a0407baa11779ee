"""Splits the times of steps into warm-up and blocks. Plain arithmetic, so that it can be tested."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from hotlap.observe.window import WarmupDetector
from hotlap.records.trial import Block

MOST_BLOCKS = 12
LATE = 1 / 3  # of the run: what is compiled again after this is not warm-up
GETTING_QUICK, QUICK, SEVERAL = 2 / 3, 0.7, 5  # of the run; of the time a step took before; steps per median
SPIKE, SPIKE_SECONDS = 30, 1.0  # times the usual step, and at least this long: a compilation, not a stall


def warmup_steps(began: float, ends: Sequence[float]) -> int:
    """Return how many steps were warm-up: at least the first, and never all."""
    seconds = [end - before for before, end in zip([began, *ends[:-1]], ends, strict=True)]
    steps = max(_until_steady(seconds), _last_spike(seconds), _until_quick(seconds))
    return max(0, min(steps, len(seconds) - 1))


def _until_steady(seconds: Sequence[float]) -> int:
    """Return the steps until times settle, however long one compiles; at most half of the run."""
    detector = WarmupDetector(None)
    for index, step_seconds in enumerate(seconds[: len(seconds) // 2]):
        detector.over(step_seconds)
        if detector.settled:
            return index + 1
    return len(seconds) // 2


def _until_quick(seconds: Sequence[float]) -> int:
    """Return the steps before a lasting speed-up, as when data is cached from epoch two on; at most two thirds."""
    late, early = int(len(seconds) * GETTING_QUICK), len(seconds) // 4
    if early < SEVERAL:
        return 0
    slow, quick = median(seconds[:early]), median(seconds[late:])
    if quick > QUICK * slow:
        return 0
    bound = (slow * quick) ** 0.5
    ends = range(SEVERAL, late + 1)
    return max((end for end in ends if median(seconds[end - SEVERAL : end]) > bound), default=0)


def _last_spike(seconds: Sequence[float]) -> int:
    """Return the steps up to the last early one that was far slower than any later one: a recompilation."""
    early = int(len(seconds) * LATE)
    later = seconds[early:]
    if not later:
        return 0
    bound = max(SPIKE * median(later), 2 * max(later), SPIKE_SECONDS)
    return max((index + 1 for index in range(early) if seconds[index] > bound), default=0)


def blocks(marks: Sequence[tuple[int, float]], warmup: int, samples_a_step: float) -> tuple[Block, ...]:
    """Cut marks (steps ended, seconds) into at most a dozen blocks after warm-up; no step is left out."""
    known = [(steps, at) for steps, at in marks if steps >= warmup]
    if len(known) < 2:
        return ()
    least = -(-(known[-1][0] - known[0][0]) // MOST_BLOCKS)
    cuts = [known[0]]
    for steps, at in known[1:]:
        if steps - cuts[-1][0] >= least:
            cuts.append((steps, at))
    if len(cuts) == 1:
        cuts.append(known[-1])
    cuts[-1] = known[-1]
    return tuple(
        Block(first=start, steps=end - start, samples=(end - start) * samples_a_step, seconds=until - since)
        for (start, since), (end, until) in pairwise(cuts)
    )

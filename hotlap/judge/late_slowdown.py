"""Detects a speed-up that fades: compares the first and the last third of a long run.

Both parts come from the same processes, so the luck of a process weighs on both alike. The median block of each part
counts, because a block that holds an evaluation may be slow without training being slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from hotlap.judge.speed import measured
from hotlap.records.trial import Block, Sample, Trial
from hotlap.records.verdict import Check, Speed

NAME = "speed of the last part"
PARTS = 3  # the run is compared in thirds
LEAST_LOSS, MOST_NOISE = math.log(1.1), math.log(1.25)  # of speed: a smaller loss than this is noise
PAIRS = 2  # of processes that must show it


def late_check(trial: Trial, found: Speed | None) -> Check:
    base, new = measured(trial.of("base")), measured(trial.of("new"))
    first, last = _ratio(base, new, _first), _ratio(base, new, _last)
    if first is None or last is None:
        return Check(name=NAME, passed=None, why="too few steps were measured to judge the last of them separately")
    noise = math.log(found.noise_high) if found is not None and found.noise_high else 0.0
    lost = math.log(first) - math.log(last)
    halved = last < 1 + (first - 1) / 2 or last < 1
    comparison = f"{last:.2f} × as fast in the last third of the steps, {first:.2f} × in the first"
    if not halved or lost <= max(LEAST_LOSS, min(noise, MOST_NOISE)):
        return Check(name=NAME, passed=True, why=comparison)
    if min(len(base), len(new)) < PAIRS:
        return Check(name=NAME, passed=None, why=f"it may become slower later: {comparison}")
    return Check(name=NAME, passed=False, why=f"it becomes slower later: {comparison}")


def _ratio(
    base: Iterable[Sample], new: Iterable[Sample], part: Callable[[Sequence[Block]], Sequence[Block]]
) -> float | None:
    rates = []
    for arm in (new, base):
        blocks = [block for sample in arm for block in part(sample.blocks) if block.seconds > 0]
        if not blocks:
            return None
        rates.append(median(block.samples / block.seconds for block in blocks))
    return rates[0] / rates[1]


def _first(blocks: Sequence[Block]) -> Sequence[Block]:
    return blocks[: len(blocks) // PARTS]


def _last(blocks: Sequence[Block]) -> Sequence[Block]:
    return blocks[-(len(blocks) // PARTS) :] if len(blocks) >= PARTS else ()

"""Lists what an observation cannot tell, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hotlap.diagnose.sentences import percent
from hotlap.diagnose.step import Step
from hotlap.diagnose.verdict import BOUND, HIDDEN, NO_FASTER
from hotlap.records.figures import times
from hotlap.records.observation import DATA

ENOUGH_STEPS = 10


def unknowns(step: Step) -> tuple[str, ...]:
    if not step.measured:
        return ("cannot tell where the time goes, because no training step was measured",)
    return tuple(f"cannot tell {what}, because {why}" for what, why in (*_unseen(step), *_of_the_ceiling(step)))


def _unseen(step: Step) -> Iterator[tuple[str, str]]:
    seen = step.observation
    if step.loader() is None:
        yield "what input costs", "no DataLoader was seen: batches that the loop makes itself count as rest"
    if not seen.models:
        yield "forward from the rest", "no module owning the optimizer's parameters was called"
    if step.asynchronous and seen.device is None:
        yield "launch- from compute-bound", "no device profile was taken"
    if not seen.samples_per_second or not math.isfinite(seen.samples_per_second):
        yield "samples per second", "the number of samples in a batch was not seen"
    if len(seen.step_ms) < ENOUGH_STEPS:
        yield "these figures from chance", f"only {len(seen.step_ms)} steps were measured"
    if not seen.losses:
        yield "whether training works", "no loss was seen"


def _of_the_ceiling(step: Step) -> Iterator[tuple[str, str]]:
    ceiling, ratio = step.observation.ceiling, step.ceiling_ratio()
    if ratio is None:
        note = ceiling.note if ceiling and ceiling.note else "speed with one cached batch was not measured"
        yield "how fast it would run without input", note.rstrip(".")
    elif step.share(DATA) >= BOUND and ratio < NO_FASTER:
        waiting = percent(step.share(DATA))
        yield f"what the {waiting} spent waiting for data cost", f"a cached batch ran no faster ({times(ratio)})"
    elif step.share(DATA) < HIDDEN and 1.0 - 1.0 / ratio >= BOUND:
        yield (
            f"why a cached batch ran {times(ratio)} as fast",
            f"the loop waits for data only {percent(step.share(DATA))} of a step: perhaps batches of unequal size, "
            "or workers that compete for the cores",
        )

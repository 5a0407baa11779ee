"""Computes how many times faster the new arm is than the base arm, and whether that is a real difference.

Faster means three things at once: the 95 % interval lies above 1, the ratio is at least the minimum effect, and it is
outside the noise band, which is how far two alike arms of as many processes stray (Student's t, from the spread between
processes of the baseline: the noise trial and this trial's own base arm).

Processes are clusters: the blocks of one process share its luck. With three or more per arm, whole processes are
resampled (ratio.py). With fewer, blocks are resampled, which hardly shows the spread between processes: the interval is
then no narrower than the noise band around the ratio, and without a noise band nothing is called faster.

Arms run A B B A, so a steady drift adds the same to both. They are not paired beyond that: at three processes per arm
the degrees of freedom that pairing costs would widen the interval by half.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hotlap.judge import power
from hotlap.judge.ratio import EPOCHS, NOTHING, RUNS, RUNS_TO_RESAMPLE, Ratio, Work, ratio
from hotlap.records.trial import EndReason, Sample, Trial, TrialStage
from hotlap.records.verdict import Speed

RESAMPLED = {RUNS: "processes", EPOCHS: "blocks", NOTHING: "nothing"}


def measured(samples: Iterable[Sample]) -> list[Sample]:
    """Return the samples whose speed counts."""
    return [
        sample
        for sample in samples
        if sample.ended == EndReason.MEASURED and _seconds(sample) > 0 and _samples(sample) > 0
    ]


def speed(trial: Trial, noise: Trial | None, minimum: float) -> Speed | None:
    """Compare the speed of both arms; None if one of them has no measured block."""
    base, new = measured(trial.of("base")), measured(trial.of("new"))
    if not base or not new:
        return None
    spread = _spread(trial, base, new, noise)
    found = ratio(_arm(new), _arm(base))
    half = None if spread is None else power.band(spread, len(base), len(new))
    low, high = _ends(found, half)
    processes = min(len(base), len(new))
    return Speed(
        ratio=found.value,
        low=low,
        high=high,
        resampled=RESAMPLED[found.resampled],
        noise_low=None if half is None else math.exp(-half),
        noise_high=None if half is None else math.exp(half),
        faster=_beyond(found.value, low, half, minimum),
        slower=_beyond(1 / found.value, None if high is None else 1 / high, half, minimum),
        minimum=minimum,
        smallest=None if spread is None else power.smallest(_before(spread, base), processes),
        more=_more(spread, base, processes, minimum),
        more_as_measured=_more(spread, base, processes, max(found.value, minimum)),
    )


def _beyond(value: float, low: float | None, half: float | None, minimum: float) -> bool:
    return low is not None and half is not None and low > 1 and value >= minimum and math.log(value) > half


def _ends(found: Ratio, half: float | None) -> tuple[float | None, float | None]:
    if found.low is None or found.high is None:
        return None, None
    if found.resampled == RUNS or half is None:
        return found.low, found.high
    return min(found.low, found.value * math.exp(-half)), max(found.high, found.value * math.exp(half))


def _spread(trial: Trial, base: Sequence[Sample], new: Sequence[Sample], noise: Trial | None) -> power.Spread | None:
    """Return the baseline's spread, or both arms' if the new one strays more; two processes only hint at that."""
    if trial.stage == TrialStage.NOISE:  # both arms are the baseline
        return power.spread_of([_logs([*base, *new])])
    alike = [_logs(measured(noise.samples)) if noise is not None else [], _logs(base)]
    own = power.spread_of(alike)
    if own is None or len(new) >= RUNS_TO_RESAMPLE:
        return own
    both = power.spread_of([*alike, _logs(new)])
    return both if both is not None and both.deviation > own.deviation else own


def _before(spread: power.Spread, base: Sequence[Sample]) -> power.Spread:
    """Return the spread without the degrees of freedom of this trial, which the power calculation adds itself."""
    known = max(spread.freedom - (len(base) - 1), 0)
    return power.Spread(deviation=spread.deviation, freedom=known)


def _more(spread: power.Spread | None, base: Sequence[Sample], processes: int, effect: float) -> int:
    if spread is None:  # no process has been repeated yet, so there is nothing to compute from
        return max(1, RUNS_TO_RESAMPLE - processes)
    return max(0, power.processes_needed(_before(spread, base), effect) - processes)


def _arm(samples: Sequence[Sample]) -> list[list[Work]]:
    return [[Work(samples=block.samples, seconds=block.seconds) for block in sample.blocks] for sample in samples]


def _logs(samples: Sequence[Sample]) -> list[float]:
    return [math.log(_samples(sample) / _seconds(sample)) for sample in samples]


def _seconds(sample: Sample) -> float:
    return sum(block.seconds for block in sample.blocks)


def _samples(sample: Sample) -> float:
    return sum(block.samples for block in sample.blocks)

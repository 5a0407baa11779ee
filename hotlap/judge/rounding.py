"""ROUNDING: the same mathematics in a different order.

A different order of additions changes the last bit of a loss, and training amplifies it: two runs of the same recipe
diverge, sometimes in jumps (a ReLU that switches, a tie in a pooling). How fast is a property of the program, so it is
measured. The reference is the baseline against itself, with weights nudged by a rounding error before the first step,
or unchanged if it does not repeat itself anyway. With the same seeds, the new arm may diverge from the baseline by at
most a multiple of what the reference did up to the same step.

Two figures of the difference are compared with the reference in every stretch of steps: its root mean square in each
seed, which catches a wrong step while the runs are still close, and its mean over all seeds, which catches a loss that
is systematically lower or higher once they have diverged. A better loss is rejected as well: the same mathematics does
not train better.

If the reference diverged so far that a tenth of the loss would go unseen, there is no evidence yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hotlap.judge.curves import Curve, Curves
from hotlap.judge.power import student
from hotlap.records.plan import Risk
from hotlap.records.verdict import Gate

NUDGE = 2.0**-16  # relative to the weight: the nudge of the reference runs, different in each
LEAST_MULTIPLE = 4.0  # Student's t where few references make it larger: 64 for one, 10 for two
FLOOR = 2.0**-16  # of the loss: how far float32 kernels from different libraries differ
UNSEEN = 0.1  # of the loss: the most that a gate may overlook at the end
SHORTEST, STRETCHES = 4, 8  # a stretch has at most an eighth of all steps, but may always have four


@dataclass(frozen=True, slots=True)
class Stretch:
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Apart:
    """How far one curve is from another in one stretch."""

    mean: float
    square: float  # root mean square


def stretches(steps: int) -> list[Stretch]:
    """Split the steps into stretches of 1, 1, 2, 4 …, because runs diverge fast; later ones are all of one length."""
    found, at = [Stretch(0, 1)], 1
    longest = max(SHORTEST, steps // STRETCHES)
    while at < steps:
        length = min(at, longest)
        end = steps if steps - (at + length) < length // 2 else at + length
        found.append(Stretch(at, end))
        at = end
    return found


def rounding(found: Curves, risk: Risk = Risk.ROUNDING, note: str = "") -> Gate:
    """Compare the new arm with the references; gates.py handles a baseline that has none."""
    pairs = found.parted
    multiple = max(LEAST_MULTIPLE, student(max(1, len(pairs)), 0.99))
    rule = (
        f"{note}loss differs from the baseline's by at most {multiple:.1f} × what the baseline differs from itself "
        f"({_count(len(pairs), 'pair')} of runs), over {found.steps} steps, {_count(len(found.seeds), 'seed')}"
    )
    if not pairs:
        why = "no two runs of the baseline differ, so its own rounding is not known"
        return Gate(risk=risk, passed=None, rule=rule, why=why, more=1)
    return _within(found, pairs, multiple, risk, rule)


def _within(found: Curves, pairs: Sequence[tuple[Curve, Curve]], multiple: float, risk: Risk, rule: str) -> Gate:
    worst = allowed = level = 0.0
    for stretch, reference in _with_reference(pairs, stretches(found.steps)):
        level = _level(found, stretch)
        allowed = max(multiple * reference.mean / math.sqrt(len(found.seeds)), FLOOR * level)
        bound = max(multiple * reference.square, FLOOR * level)
        new = [apart(curve, found.base[seed][0], stretch) for seed in found.seeds for curve in found.new[seed]]
        far, bias = max(gap.square for gap in new), sum(gap.mean for gap in new) / len(new)
        worst = max(worst, far / max(bound, math.ulp(0.0)), abs(bias) / max(allowed, math.ulp(0.0)))
        if worst > 1:
            why = _why(far, bias, level, bound, allowed)
            figures = (("share of what is allowed", worst), ("first step", float(stretch.first)))
            return Gate(risk=risk, passed=False, rule=rule, why=f"{_steps(stretch)} {why}", figures=figures)
    figures = (("share of what is allowed", worst), ("of the loss unseen", allowed / level if level else 0.0))
    if allowed > UNSEEN * level:
        why = f"the baseline differs so much from itself that a change of {100 * allowed / level:.0f} % would go unseen"
        more = math.ceil(len(found.seeds) * ((allowed / (UNSEEN * level)) ** 2 - 1))
        return Gate(risk=risk, passed=None, rule=rule, why=why, figures=figures, more=max(1, more))
    why = f"the loss stays within rounding of the baseline's; {100 * allowed / level:.2g} % would have been noticed"
    return Gate(risk=risk, passed=True, rule=rule, why=why, figures=figures)


def _with_reference(pairs: Sequence[tuple[Curve, Curve]], every: Sequence[Stretch]) -> Iterator[tuple[Stretch, Apart]]:
    """Yield each stretch with the furthest that the reference diverged up to the next: a jump may come a bit later."""
    parted = [[apart(other, first, stretch) for other, first in pairs] for stretch in every]
    squares = [_rms([gap.square for gap in gaps]) for gaps in parted]
    means = [_rms([gap.mean for gap in gaps]) for gaps in parted]
    for number, stretch in enumerate(every):
        yield stretch, Apart(mean=max(means[: number + 2]), square=max(squares[: number + 2]))


def _why(far: float, bias: float, level: float, bound: float, allowed: float) -> str:
    if far > bound:
        return f"the loss differs by {_percent(far, level)}, where rounding explains {_percent(bound, level)}"
    side = "higher" if bias > 0 else "lower"
    return f"the loss is {_percent(abs(bias), level)} {side}, where rounding explains {_percent(allowed, level)}"


def _steps(stretch: Stretch) -> str:
    if stretch.end - stretch.first == 1:
        return f"in step {stretch.first}"
    return f"in steps {stretch.first} to {stretch.end - 1}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _percent(value: float, level: float) -> str:
    if not level:
        return f"{value:.2g}"
    percent = 100 * value / level
    return f"{percent:.2g} %" if percent < 99.5 else f"{percent:.0f} %"


def apart(curve: Curve, base: Curve, stretch: Stretch) -> Apart:
    gaps = [loss - other for loss, other in zip(curve, base, strict=True)][stretch.first : stretch.end]
    return Apart(mean=sum(gaps) / len(gaps), square=_rms(gaps))


def _level(found: Curves, stretch: Stretch) -> float:
    sizes = [abs(loss) for seed in found.seeds for loss in found.base[seed][0][stretch.first : stretch.end]]
    return sum(sizes) / len(sizes)


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))

"""ROUNDING: the same mathematics in another order.

Another order of additions changes the last bit of a loss, and training makes more of it: two runs of the same recipe
part, sometimes in jumps (a ReLU that switches, a tie in a pooling). How fast is a property of the program, so it is
measured: the reference is the baseline against itself, its weights nudged by a rounding before the first step, or as
it is where it does not repeat itself anyway. The new arm, with the same seeds, may part from the baseline no further
than a multiple of what the reference did up to the same step.

Two figures of the difference are held against the reference in every stretch of steps: its root mean square in each
seed, which sees a wrong step while the runs are still close, and its mean over all seeds, which sees a loss that is
systematically lower or higher after they have parted. Better is refused as well: the same mathematics trains no better.

Where the reference has parted so far that a tenth of the loss would go unseen, there is no evidence yet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hotlap.judge.curves import Curve, Curves
from hotlap.judge.power import student
from hotlap.records.plan import Risk
from hotlap.records.verdict import Gate

NUDGE = 2.0**-16  # relative to the weight; what the reference runs are to be nudged by, each another way
LEAST_MULTIPLE = 4.0  # Student's where few references make it larger: 64 for one, 10 for two
FLOOR = 2.0**-16  # of the loss: what float32 kernels of different makers differ by
UNSEEN = 0.1  # of the loss, that a gate may overlook at most at the end
SHORTEST, STRETCHES = 4, 8  # a stretch has at most this part of all steps, but may always have four


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
    """One step, one, two, four …, because runs part fast; then all of one length."""
    found, at = [Stretch(0, 1)], 1
    longest = max(SHORTEST, steps // STRETCHES)
    while at < steps:
        length = min(at, longest)
        end = steps if steps - (at + length) < length // 2 else at + length
        found.append(Stretch(at, end))
        at = end
    return found


def rounding(found: Curves, risk: Risk = Risk.ROUNDING, note: str = "") -> Gate:
    """Needs references; see gates.py for a baseline that has none."""
    pairs = found.parted
    multiple = max(LEAST_MULTIPLE, student(max(1, len(pairs)), 0.99))
    rule = (
        f"{note}loss apart from the baseline's by at most {multiple:.1f} × what the baseline is apart from itself "
        f"({_count(len(pairs), 'pair')} of runs), over {found.steps} steps, {_count(len(found.seeds), 'seed')}"
    )
    if not pairs:
        why = "no two runs of the baseline differ, so its own rounding is not known"
        return Gate(risk=risk.value, passed=None, rule=rule, why=why, more=1)
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
            return Gate(risk=risk.value, passed=False, rule=rule, why=f"{_steps(stretch)} {why}", figures=figures)
    figures = (("share of what is allowed", worst), ("of the loss unseen", allowed / level if level else 0.0))
    if allowed > UNSEEN * level:
        why = f"the baseline differs so much from itself that {100 * allowed / level:.0f} % of the loss would go unseen"
        more = math.ceil(len(found.seeds) * ((allowed / (UNSEEN * level)) ** 2 - 1))
        return Gate(risk=risk.value, passed=None, rule=rule, why=why, figures=figures, more=max(1, more))
    why = f"the loss stays within rounding of the baseline's; {100 * allowed / level:.2g} % off would have been seen"
    return Gate(risk=risk.value, passed=True, rule=rule, why=why, figures=figures)


def _with_reference(pairs: Sequence[tuple[Curve, Curve]], every: Sequence[Stretch]) -> Iterator[tuple[Stretch, Apart]]:
    """The furthest the reference was apart up to the stretch after: a jump may come a little earlier or later."""
    parted = [[apart(other, first, stretch) for other, first in pairs] for stretch in every]
    squares = [_rms([gap.square for gap in some]) for some in parted]
    means = [_rms([gap.mean for gap in some]) for some in parted]
    for number, stretch in enumerate(every):
        yield stretch, Apart(mean=max(means[: number + 2]), square=max(squares[: number + 2]))


def _why(far: float, bias: float, level: float, bound: float, allowed: float) -> str:
    if far > bound:
        return f"the loss is {_percent(far, level)} apart, where rounding explains {_percent(bound, level)}"
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
